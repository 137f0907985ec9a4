"""Preempted requests, salts and resets of the prefix cache."""

import pytest
from helpers import arrive, caching, make_scheduler, num_hit, request, run, sequence

from minivllm import LLM, SamplingParams
from minivllm.lab.sim import simulate
from minivllm.lab.sim.workloads import SimRequest
from minivllm.utils.math_utils import cdiv


@pytest.mark.parametrize("num_output", [5, 9, 13])
def test_a_preempted_request_finds_the_blocks_that_others_have_left(num_output):
    """It was preempted with two full blocks. Of these the last one is taken first."""
    scheduler = make_scheduler(num_blocks=7, block_size=4, max_model_len=24, caching=True)
    for name, first, max_tokens in (("a", 1, num_output), ("b", 2, 5)):
        scheduler.add_request(request(name, [first] * 11, max_tokens=max_tokens))
    plans = run(scheduler)
    back = next(plan for plan in plans if plan.resumed_req_ids)
    left = 6 - cdiv(11 + num_output - 1, 4)
    assert back.num_computed_tokens["b"] == 4 * min(3, left)


def test_a_salt_keeps_strangers_apart():
    manager = caching()
    arrive(manager, "a", 12, cache_salt="x")
    assert num_hit(manager, list(range(12))) == 0
    assert num_hit(manager, list(range(12)), cache_salt="y") == 0
    assert num_hit(manager, list(range(12)), cache_salt="x") == 8


def test_a_salt_changes_the_hash_of_every_block():
    manager = caching()
    salts = (None, "x", "y")
    seqs = [sequence("s", 12, cache_salt=salt) for salt in salts]
    hashes = [block_hash for s in seqs for block_hash in manager.prefix_cache.block_hashes(s, 3)]
    assert len(set(hashes)) == 9


def test_a_simulated_request_has_its_salt():
    prompt = [1] * 64
    workload = [SimRequest(9.0 * i, prompt, 1, cache_salt=salt) for i, salt in enumerate("xxy")]
    assert [r.num_cached_tokens for r in simulate(workload).requests] == [0, 48, 0]
    with pytest.raises(ValueError, match=r"workload\[0\].cache_salt must be None or a text, got 7"):
        simulate([SimRequest(0.0, prompt, 1, cache_salt=7)])


def test_reset_refuses_while_blocks_are_in_use():
    manager = caching()
    seq = arrive(manager, "a", 12)
    assert not manager.reset_prefix_cache()
    assert num_hit(manager, list(range(12))) == 8
    manager.free(seq)
    assert manager.reset_prefix_cache()
    assert num_hit(manager, list(range(12))) == 0
    manager.check_integrity()


def test_in_the_engine(tiny_qwen2):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, block_size=4, max_model_len=64,
        num_gpu_blocks_override=41, trace=True,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)

    def cached(**prompt):
        return llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens

    table = list(range(33))
    assert [cached(prompt_token_ids=table) for _ in range(2)] == [0, 32]
    assert [cached(prompt_token_ids=table, cache_salt="me") for _ in range(2)] == [0, 32]
    assert llm.reset_prefix_cache()
    assert cached(prompt_token_ids=table) == 0
    state = llm.trace.state_at(llm.trace.num_steps - 1)
    assert state.cached == {b.block_id for b in llm.llm_engine.scheduler.kv_manager.prefix_cache}
