"""Exercises of notebook 20: solutions are what the package does."""

from collections import Counter
from concurrent.futures import Future

import pytest
import torch
from helpers import make_scheduler, request

from minivllm.distributed.shard import divides, get_pp_indices, kv_head_share
from minivllm.embedded import embedded_model_path
from minivllm.exercises import ch20
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.ranks import run_ranks
from minivllm.lab.sim.interconnects import ring_bytes
from minivllm.lab.sim.loop import fake_execute
from minivllm.models.loader import load_config, load_model
from minivllm.scheduling.batch_queue import BatchQueue

SEEDS = range(5)


def test_all_reduces_and_their_bytes_are_those_of_a_model():
    source = embedded_model_path()
    config = load_config(source)

    def exchanged(group):
        args = source, config, torch.bfloat16, torch.device("cpu")
        next_token_logits(load_model(*args, group=group), list(range(9)))
        return [op.num_bytes for op in group.operations if op.op == "all_reduce"]

    number, given, sent = ch20.wire(0).solution(config.num_layers, config.hidden_size, 9, 4)
    assert sent == ring_bytes(given, 4)
    for num_bytes in run_ranks(4, exchanged):
        assert (len(num_bytes), sum(num_bytes)) == (number, given)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_keeps_the_heads_that_the_engine_gives_it(seed):
    exercise = ch20.kv_bytes(seed)
    results = [exercise.solve()(*call) for call in exercise.calls]
    assert 0 < results.count(None) < len(results)
    for (num_heads, num_kv_heads, head_dim, size), result in zip(
        exercise.calls, results, strict=True
    ):
        if divides(num_heads, num_kv_heads, num_heads * size, size):
            heads = kv_head_share(num_kv_heads, 0, size)
            assert result == 4 * head_dim * (heads.stop - heads.start)
        else:
            assert result is None


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_have_the_layers_that_the_engine_gives_them(seed):
    exercise = ch20.blocks(seed)
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
    exercise = ch20.fill(seed)
    for call in exercise.calls[:5]:
        enough = exercise.solve()(*call)
        assert least_plan(*call, enough) == 1
        assert least_plan(*call, enough - 1) == 0
