"""The scheduler with drafts and without a model: vLLM's recordings, and invariants that hold.

The made-up model is a function of all tokens so far, so a lost, doubled or unverified one shows.
"""

import json
import subprocess
import sys

import pytest
from helpers import assert_decides_as, assert_same_free_queue, examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.drafting import fake_drafts
from minivllm.lab.sim.loop import fake_execute, run_step
from minivllm.lab.sim.recordings import SPEC_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.checkpoint import Checkpoint
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import Verified


@pytest.mark.parametrize("path", SPEC_GOLDEN, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_every_decision_is_vllms(path):
    assert_decides_as(path)


def test_there_are_recordings():
    assert len(SPEC_GOLDEN) == 22


def test_the_command_replays_a_recording_with_drafts(tmp_path):
    golden, out = load_recording(SPEC_GOLDEN[0]), tmp_path / "out.json"
    command = [sys.executable, "-m", "minivllm.sim", "replay", SPEC_GOLDEN[0], "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    assert json.loads(out.read_text())["steps"] == golden["steps"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "guess"}, r"config\['speculative'\]\['method'\] must be one of ngram"),
        ({"num_speculative_tokens": 0}, "an integer from 1 to 128"),
        ({"draft_seed": None}, r"\['draft_seed'\] must be an integer"),
        ({"accept": "some"}, "one of mixed, all, none"),
    ],
)
def test_a_workload_with_a_speculation_that_cannot_be(change, message):
    golden = load_recording(SPEC_GOLDEN[0])
    golden["config"]["speculative"] |= change
    with pytest.raises(ValueError, match=message):
        replay(golden)


def make(workload, with_drafts):
    """A scheduler and its requests; the same requests each time."""
    k = workload["k"] if with_drafts else 0
    ahead = workload["lookahead"] and with_drafts
    config = SchedulerConfig(
        max_num_batched_tokens=workload["budget"],
        max_num_seqs=4,
        max_model_len=48,
        long_prefill_token_threshold=workload["threshold"],
        preemption_mode=workload["mode"],
        num_speculative_tokens=k,
        num_lookahead_tokens=k if ahead else 0,
        num_drafting_slots=1 if ahead else 0,
    )
    manager = KVCacheManager(workload["num_blocks"], 4, workload["caching"], num_host_blocks=40)
    scheduler = Scheduler(config, manager, Trace(workload["num_blocks"], 4, workload["budget"]))
    manager.trace = scheduler.trace
    requests = []
    for i, (prompt_len, max_tokens, n) in enumerate(workload["requests"]):
        params = SamplingParams(max_tokens=max_tokens, n=n, stop_token_ids=workload["stops"])
        requests.append(Request(f"r{i}", [7] * prompt_len, params))
    return scheduler, requests


def tokens(scheduler):
    """The tokens of all sequences."""
    return {seq_id: list(seq.token_ids) for seq_id, seq in scheduler.sequences.items()}


def serve(workload, with_drafts):
    """Serve all; some steps fail first, and change no token."""
    scheduler, requests = make(workload, with_drafts)
    speculative = {
        "method": "ngram", "num_speculative_tokens": workload["k"], "draft_seed": workload["seed"],
        "accept": "mixed",
    }  # fmt: skip
    for request in requests:
        scheduler.add_request(request)
    num_steps = 0
    while scheduler.has_unfinished_requests():
        if num_steps % 5 in workload["failing"] and num_steps < 15:  # then all can be computed
            before, num_steps_traced = tokens(scheduler), scheduler.trace.num_steps
            output = scheduler.schedule()
            made = fake_execute(scheduler, output)
            checkpoint = Checkpoint(scheduler.running)
            if num_steps % 2 and made.sampled_token_ids:  # it fails when it is half booked
                made.sampled_token_ids[list(made.sampled_token_ids)[-1]] = None
                with pytest.raises(TypeError):
                    scheduler.update_from_output(output, made)
            scheduler.reset(checkpoint)
            assert tokens(scheduler) == before
            assert scheduler.trace.num_steps == num_steps_traced
            assert scheduler.kv_manager.usage == 0
            scheduler.check_integrity()
        step = run_step(scheduler)
        scheduler.check_integrity()
        if with_drafts:
            going_on = [seq for seq in step.updated if not seq.status.is_finished]
            scheduler.update_draft_token_ids(
                {s.seq_id: fake_drafts(s.token_ids, speculative, 48) for s in going_on}
            )
            scheduler.check_integrity()
        state = scheduler.trace.state_at(scheduler.trace.step)
        for seq in scheduler.running:
            assert state.sequences[seq.seq_id].num_computed_tokens == seq.num_computed_tokens
            assert state.sequences[seq.seq_id].token_ids == seq.token_ids
        assert_same_free_queue(state, scheduler.kv_manager)
        num_steps += 1
        assert num_steps < 2000
    manager = scheduler.kv_manager
    assert manager.block_pool.num_free_blocks == manager.block_pool.num_usable_blocks
    texts = [[seq.output_token_ids for seq in request.seqs] for request in requests]
    return texts, num_steps, scheduler


WORKLOADS = st.fixed_dictionaries(
    {
        "requests": st.lists(
            st.tuples(st.integers(1, 30), st.integers(1, 24), st.integers(1, 3)),
            min_size=1, max_size=5,
        ),
        "k": st.integers(1, 6),
        "seed": st.integers(0, 500),
        "budget": st.sampled_from([6, 11, 64]),
        "num_blocks": st.sampled_from([44, 60, 200]),
        "threshold": st.sampled_from([0, 0, 2, 5]),
        "caching": st.booleans(),
        "lookahead": st.booleans(),
        "mode": st.sampled_from([None, "recompute", "swap"]),
        "stops": st.sampled_from([[], [423, 847, 199]]),
        "failing": st.sampled_from([(), (), (1, 3), (0, 2)]),
    }
)  # fmt: skip


@pytest.mark.slow
@examples(80)
@given(workload=WORKLOADS)
def test_the_tokens_are_those_without_drafts(workload):
    with_drafts, _, scheduler = serve(workload, with_drafts=True)
    assert with_drafts == serve(workload, with_drafts=False)[0]
    for record in scheduler.trace.of(Verified):
        assert 0 <= record.num_accepted <= len(record.draft_token_ids) <= workload["k"]


def test_right_drafts_save_steps_and_wrong_ones_cost_none():
    workload = {
        "requests": [(5, 21, 1)], "k": 4, "seed": 1, "budget": 64, "num_blocks": 60,
        "threshold": 0, "caching": True, "lookahead": False, "mode": None, "stops": [],
        "failing": (),
    }  # fmt: skip
    steps = {}
    for accept in ("all", "none"):
        scheduler, (request,) = make(workload, with_drafts=True)
        speculative = {
            "method": "draft_model", "num_speculative_tokens": 4, "draft_seed": 0, "accept": accept,
        }  # fmt: skip
        scheduler.add_request(request)
        steps[accept] = 0
        while scheduler.has_unfinished_requests():
            for seq in run_step(scheduler).updated:
                drafts = fake_drafts(seq.token_ids, speculative, 48)
                scheduler.update_draft_token_ids({seq.seq_id: drafts})
            steps[accept] += 1
    assert steps == {"all": 1 + 20 // 5, "none": 21}


def test_a_block_is_found_only_once_its_drafts_are_verified():
    workload = {
        "requests": [(7, 12, 1)], "k": 4, "seed": 1, "budget": 64, "num_blocks": 60,
        "threshold": 0, "caching": True, "lookahead": False, "mode": None, "stops": [],
        "failing": (),
    }  # fmt: skip
    scheduler, (request,) = make(workload, with_drafts=True)
    scheduler.add_request(request)
    (seq,) = request.seqs

    def named():
        blocks = scheduler.kv_manager.block_tables[seq.seq_id].blocks
        return [block.block_hash is not None for block in blocks]

    run_step(scheduler)  # the prompt: 7 tokens, and an 8th is drawn
    scheduler.update_draft_token_ids({"r0": [1, 2, 3, 4]})
    output = scheduler.schedule()
    assert output.scheduled_spec_decode_tokens == {"r0": [1, 2, 3, 4]}
    assert named() == [True, True, False]  # positions 8 to 11 hold drafts
    scheduler.update_from_output(output, fake_execute(scheduler, output))
    assert seq.num_computed_tokens == seq.num_tokens - 1 == 8
    accepted = fake_drafts(
        seq.token_ids,
        {"method": "draft_model", "num_speculative_tokens": 4, "draft_seed": 0, "accept": "all"},
        48,
    )
    scheduler.update_draft_token_ids({"r0": accepted})
    output = scheduler.schedule()
    assert named() == [True, True, False, False]
    scheduler.update_from_output(output, fake_execute(scheduler, output))
    assert seq.num_computed_tokens == 13
    assert named() == [True, True, False, False]
    run_step(scheduler)  # one step later, as vLLM does
    assert named() == [True, True, True, False]
