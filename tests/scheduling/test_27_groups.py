"""Scheduling with KV cache groups: decisions are vLLM's, and every block is accounted for."""

import json
import random
import subprocess
import sys

import pytest
from checked_memory import CheckedMemory, make_hybrid, make_specs
from helpers import assert_decides_as, examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm.lab.sim import make
from minivllm.lab.sim.loop import fake_tokens
from minivllm.lab.sim.recordings import HYBRID_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.workloads import SimRequest
from minivllm.logger import silenced
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.trace import Trace


@pytest.mark.parametrize("path", HYBRID_GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Hits, junctions, the block ids of every group, what is cached and what is free."""
    assert_decides_as(path)


def test_a_selection_is_shipped_with_all_exhibits():
    names = [path.name[:2] for path in HYBRID_GOLDEN]
    assert names[:8] == [f"e{i}" for i in range(8)]
    assert len(names) == 12


def test_the_command_replays_groups(tmp_path):
    golden, out = load_recording(HYBRID_GOLDEN[7]), tmp_path / "out.json"
    command = [sys.executable, "-m", "minivllm.sim", "replay", HYBRID_GOLDEN[7], "--out", out]
    subprocess.run(command, check=True, timeout=100)
    assert json.loads(out.read_text())["steps"] == golden["steps"]


def change(config, **values):
    groups = [dict(group) for group in config["groups"]]
    groups[1] |= values
    return {**config, "groups": groups}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda c: c | {"groups": []}, r"config\['groups'\] must be a list of at least one"),
        (lambda c: c | {"groups": {}}, r"config\['groups'\] must be a list of at least one"),
        (lambda c: c | {"groups": [4]}, r"config\['groups'\]\[0\] must be an object"),
        (
            lambda c: change(c, kind="mamba"),
            r"\[1\]\['kind'\] must be one of full, sliding, got 'mam",
        ),
        (lambda c: change(c, block_size=0), r"\[1\]\['block_size'\] must be an integer from 1"),
        (
            lambda c: change(c, sliding_window=None),
            r"\['sliding_window'\] must be an integer from 1",
        ),
        (lambda c: change(c, kind="full"), r"\['sliding_window'\] must be absent of a full group"),
        (lambda c: change(c, block_size=999_983), "of block sizes with a multiple up to 1000000"),
        (
            lambda c: c | {"prefix_cache_retention_interval": 6},
            r"prefix_cache_retention_interval \(6\) must be non-negative and a multiple of "
            r"scheduler_block_size \(4\)",
        ),
        (
            lambda c: c | {"prefix_cache_retention_interval": -4},
            r"prefix_cache_retention_interval \(-4\) must be non-negative",
        ),
        (lambda c: c | {"prefix_cache_retention_interval": "4"}, "must be an integer"),
        (
            lambda c: c | {"groups": c["groups"][:1], "prefix_cache_retention_interval": 8},
            "prefix_cache_retention_interval is set but this model has no sliding-window",
        ),
        (lambda c: c | {"mode": "kv", "kv_role": "kv_both"}, "groups have no connector"),
    ],
)
def test_groups_that_cannot_be_are_refused(changed, message):
    golden = load_recording(HYBRID_GOLDEN[0])
    with pytest.raises(ValueError, match=message):
        replay({"config": changed(golden["config"]), "requests": golden["requests"]})


def test_a_block_size_is_asked_for_where_there_are_no_groups():
    golden = load_recording(HYBRID_GOLDEN[0])
    config = {key: value for key, value in golden["config"].items() if key != "groups"}
    with pytest.raises(ValueError, match=r"config\['block_size'\] must be given"):
        replay({"config": config, "requests": golden["requests"]})


# -- drawn mixtures, with a memory that is checked at every read ---------------------------------


def run_checked(scheduler, requests, memory, drafts, num_plans, rng):
    """Serve until all is done; the invariants hold in each step, and so does the trace."""
    manager = scheduler.kv_manager
    follower = Follower(scheduler.trace, manager)
    queue = BatchQueue(scheduler, num_plans)
    to_come = list(requests)
    for number in range(2000):
        while to_come and to_come[0].arrival_time <= number:
            scheduler.add_request(to_come.pop(0))
        if not queue.has_work and not to_come:
            break
        if drafts:
            scheduler.update_draft_token_ids({
                seq.seq_id: draw_drafts(seq, drafts, rng)
                for seq in scheduler.running
                if seq.request.may_draft and seq.num_tokens == seq.num_computed_tokens + 1
            })  # fmt: skip
        if queue.has_work:
            done = queue.advance(memory.submit)
            if done is not None:
                plan, output = done
                scheduler.update_from_output(plan, output)
            scheduler.check_integrity()
        follower.check()
        if rng.randrange(60) == 0:  # a step fails: all is computed again
            queue.clear()
            scheduler.reset()
            scheduler.check_integrity()
        if rng.randrange(20) == 0:
            all_free = manager.block_pool.num_free_blocks == manager.block_pool.num_usable_blocks
            assert manager.reset_prefix_cache() == all_free
    assert not scheduler.requests
    assert not to_come
    assert manager.block_pool.num_free_blocks == manager.block_pool.num_usable_blocks
    assert not manager.swap_space.tables


def draw_drafts(seq, most, rng):
    right = fake_tokens(seq.token_ids, most)
    num_right = rng.randrange(most + 1)
    return [t if i < num_right else t + 1 for i, t in enumerate(right)][: rng.randrange(most + 1)]


class Follower:
    """A state that follows a trace: tables, free queue and what is cached are the manager's."""

    def __init__(self, trace, manager):
        self.trace = trace
        self.manager = manager
        self.state = trace.beginning()
        self.num_applied = 0

    def check(self):
        for record in self.trace.records[self.num_applied :]:
            self.state.apply(record)
        self.num_applied = len(self.trace.records)
        state, manager = self.state, self.manager
        for seq_id in manager.block_tables:
            known = [*state.sequences[seq_id].tables]
            known += [[] for _ in range(len(manager.managers) - len(known))]
            assert known == manager.get_block_ids(seq_id)
        pool = manager.block_pool
        assert list(state.free_queue) == [block.block_id for block in pool.free_block_queue]
        assert state.num_free_blocks == pool.num_free_blocks
        found = () if manager.prefix_cache is None else manager.prefix_cache
        assert state.contents.keys() == {block.block_id for block in found}


WINDOWS = st.lists(st.sampled_from([None, 1, 2, 3, 5, 8, 9, 13]), min_size=1, max_size=4)


@examples(150)
@given(data=st.data())
def test_every_read_finds_what_was_written(data):
    """Chunks, hits, preemption both ways, samples, beams, drafts, plans in flight, failed steps.

    Whatever is drawn, no query reads a slot that another sequence, or another group, has written.
    """
    draw = data.draw
    size = draw(st.sampled_from([1, 2, 4]), "block size")
    windows = draw(WINDOWS, "windows")
    budget = draw(st.integers(3, 24), "budget")
    num_plans = draw(st.sampled_from([1, 1, 2]), "plans in flight")
    drafts = draw(st.sampled_from([0, 3]), "drafts") if num_plans == 1 else 0
    rng = random.Random(draw(st.integers(0, 2**16), "seed"))
    length = 40
    settings = {
        "caching": draw(st.booleans(), "caching"),
        "retention": draw(st.sampled_from([0, None, size, 3 * size]), "retention"),
    }
    if all(window is None for window in windows):
        settings["retention"] = 0
    probe = make_hybrid(1000, windows, size, budget=budget, max_model_len=length)
    most = probe.max_num_blocks(0, length, 1) + draw(st.integers(0, 20), "blocks to spare")
    manager = make_hybrid(
        most + 1, windows, size, host=draw(st.sampled_from([0, 60]), "host"),
        budget=budget, max_model_len=length, num_plans=num_plans, **settings,
    )  # fmt: skip
    scheduler = make.make_scheduler(
        manager,
        Trace(most + 1, size, budget),
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.integers(1, 6), "sequences"),
        max_model_len=length,
        preemption_mode=draw(st.sampled_from([None, "swap", "recompute"]), "preemption"),
        num_speculative_tokens=drafts,
        async_scheduling=num_plans > 1,
        long_prefill_token_threshold=draw(st.sampled_from([0, 5]), "threshold"),
    )
    manager.trace = scheduler.trace
    stem = [rng.randrange(50) for _ in range(24)]
    requests = []
    width = 2
    for i in range(draw(st.integers(1, 7), "requests")):
        prompt = stem[: rng.randrange(25)] + [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
        prompt = prompt[:30]
        kind = rng.choice(["one", "one", "one", "samples", "beams"])
        one = make_one(f"r{i}", prompt, rng.randrange(1, length - len(prompt)), kind, width, rng)
        try:
            scheduler.check_request(one)
        except ValueError:
            continue  # it could not run on its own
        requests.append(one)
    requests.sort(key=lambda one: one.arrival_time)
    memory = CheckedMemory(make_specs(windows, size), beam_width=width)
    with silenced("minivllm.scheduling.preemption"):
        run_checked(scheduler, requests, memory, drafts, num_plans, rng)
    for one in requests:
        if one.beam_params is None:
            for seq in one.seqs:
                made = fake_tokens(one.prompt_token_ids, one.sampling_params.max_tokens)
                assert seq.output_token_ids == made


def make_one(name, prompt, num_output, kind, width, rng):
    """One of several kinds of requests, which comes some steps later."""
    arrival = float(rng.choice([0, 0, rng.randrange(12)]))
    if kind == "beams":
        entry = SimRequest(arrival, prompt, num_output, n=width, beams=True)
        return make.make_entry(entry, name, arrival)
    return make.make_request(
        name, prompt, num_output, arrival_time=arrival, n=2 if kind == "samples" else 1
    )
