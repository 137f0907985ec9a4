"""Notebook 20b: exercises whose solutions are what the package does; a pipeline call by call."""

from collections import Counter
from concurrent.futures import Future
from itertools import pairwise

import pytest
from helpers import make_scheduler, request
from test_20_figures import staged
from test_viz_figures import chunked

from minivllm.course.asking.answers import NotYet
from minivllm.distributed.shard import get_pp_indices
from minivllm.exercises import ch20b
from minivllm.lab.sim.loop import fake_execute
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.viz import pipeline_grid

SEEDS = range(5)


def test_batches_move_on_by_one_stage_a_call():
    text = pipeline_grid(staged(), last=6).text
    assert "4 stages · 18 of 28 cells compute something (64%)" in text
    rows = [line.split()[2:] for line in text.splitlines() if line.startswith("stage")]
    assert rows[0] == ["A", "B", "C", "░", "A", "B", "C"]
    for earlier, later in pairwise(rows):
        assert later == ["░", *earlier[:-1]]


def test_with_fewer_sequences_fewer_stages_compute():
    for max_num_seqs, share in ((1, "25%"), (2, "50%"), (4, "100%")):
        trace = staged(num_requests=8, max_num_seqs=max_num_seqs)
        assert f"({share})" in pipeline_grid(trace, first=4, last=11).text


def test_one_stage_has_no_bubble():
    assert (
        "1 stage · 2 of 2 cells compute something (100%)" in pipeline_grid(chunked(), last=1).text
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_have_the_layers_that_the_engine_gives_them(seed):
    exercise = ch20b.blocks(seed)
    for num_layers, free_bytes, block_bytes in exercise.calls:
        counts = []
        for stage, free in enumerate(free_bytes):
            begin, end = get_pp_indices(num_layers, stage, len(free_bytes))
            counts.append(free // ((end - begin) * block_bytes))
        assert exercise.solve()(num_layers, free_bytes, block_bytes) == min(counts)


def least_plan(prompt_len, budget, num_stages, max_num_seqs):
    """Requests of the emptiest of ``num_stages`` plans behind those with prompts."""
    scheduler = make_scheduler(
        num_blocks=10_000, block_size=16, budget=budget, max_num_seqs=max_num_seqs,
        max_model_len=1024,
    )  # fmt: skip
    queue, plans = BatchQueue(scheduler, num_stages), []

    def execute(plan):
        plans.append(plan.num_scheduled_tokens)
        future = Future()
        future.set_result(fake_execute(scheduler, plan))
        return future

    for number in range(max_num_seqs + 5):
        scheduler.add_request(request(f"r{number}", prompt_len, max_tokens=50))
    while len(plans) < 3 * num_stages:
        if (oldest := queue.advance(execute)) is not None:
            scheduler.update_from_output(*oldest)
    decodes = plans[2 * num_stages :]
    assert set(Counter(n for plan in decodes for n in plan.values())) == {1}
    return min(map(len, decodes))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_pipeline_is_full_and_one_request_less_leaves_a_stage_empty(seed):
    exercise = ch20b.fill(seed)
    for call in exercise.calls[:5]:
        enough = exercise.solve()(*call)
        assert least_plan(*call, enough) == 1
        assert least_plan(*call, enough - 1) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_smaller_replica_holds_as_many_chats(seed):
    """Chats are put into replicas one by one."""
    exercise = ch20b.replicas(seed)
    size, chats = exercise.solve()
    for smaller in (d for d in (1, 2, 4, 8) if d < size):
        with pytest.raises(NotYet, match="devices: "):
            exercise.check((smaller, chats))
    given = exercise.given
    left = [size * given["device_gb"] - given["weights_gb"]] * (8 // size)
    placed = 0
    for index in range(len(left)):
        while left[index] >= given["chat_gb"]:
            left[index] -= given["chat_gb"]
            placed += 1
    assert placed == chats >= given["num_chats"]


def test_calls_that_a_trace_has_not_are_refused():
    with pytest.raises(ValueError, match="steps must be first and last, from"):
        pipeline_grid(staged(), first=3, last=2)
