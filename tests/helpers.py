"""Helpers of several test files: sequences, a model-free scheduler, an engine beside the oracle."""

import time
from pathlib import Path

import pytest
from hypothesis import settings

from minivllm import LLM, SamplingParams
from minivllm.kv.manager import KVCacheManager
from minivllm.lab import oracle
from minivllm.lab.sim import loop, make
from minivllm.lab.sim.recordings import load_recording
from minivllm.lab.sim.replay import replay
from minivllm.request import Request
from minivllm.trace import Trace

CLEAR = 1e-4  # a choice with less margin than this may fall either way

AT_NIGHT = settings.default.max_examples >= 1000  # the nightly profile: all of what there is
# A test that only the night has time for: the suite has a smaller one of its kind.
nightly = pytest.mark.skipif(not AT_NIGHT, reason="every night")


def examples(number, steps=50):
    """Settings of a property: number of examples, and of steps if it is a state machine.

    The suite looks at a quarter of them; the nightly profile at ten times as many, and its
    histories are three times as long.
    """
    profile = settings.default
    return settings(
        max_examples=max(1, number * profile.max_examples // 100),
        stateful_step_count=steps * profile.stateful_step_count // 50,
        deadline=None,
    )


def assert_decides_as(path):
    """Check that our scheduler decides each step of a recording as vLLM's did."""
    golden = load_recording(path)
    ours = replay({"config": golden["config"], "requests": golden["requests"]})
    for want, got in zip(golden["steps"], ours["steps"], strict=True):
        assert got == want
    assert ours["results"] == golden["results"]


# -- blocks ------------------------------------------------------------------------------------


def sequence(name, token_ids, **kwargs):
    """A request's only sequence; its tokens may be given as a number."""
    token_ids = list(range(token_ids)) if isinstance(token_ids, int) else token_ids
    return Request(name, token_ids, SamplingParams(), **kwargs).seqs[0]


def can_admit(manager, seq, hit):
    """Are there free blocks for the whole of a sequence?"""
    return manager.get_num_blocks_to_allocate(seq, hit) <= manager.block_pool.num_free_blocks


def compute(manager, seq, num_tokens=None):
    """Allocate for this many more tokens and let them be computed; the new block ids, or None."""
    num_tokens = seq.num_tokens - seq.num_computed_tokens if num_tokens is None else num_tokens
    new_ids = manager.allocate_slots(seq, num_tokens, [])
    if new_ids is not None:
        seq.num_computed_tokens += num_tokens
    return new_ids


def arrive(manager, name, token_ids, **kwargs):
    """Admit a sequence with its hit and compute all of it."""
    seq = sequence(name, token_ids, **kwargs)
    hit = manager.get_computed_blocks(seq)
    assert can_admit(manager, seq, hit)
    manager.allocate_new_computed_blocks(seq, hit)
    assert compute(manager, seq) is not None
    manager.check_integrity()
    return seq


def caching(num_blocks=20, block_size=4):
    """Manager with a prefix cache."""
    return KVCacheManager(num_blocks, block_size, enable_prefix_caching=True)


def num_hit(manager, token_ids, **kwargs):
    """Number of cached tokens that a sequence would find now."""
    return manager.get_computed_blocks(sequence("?", token_ids, **kwargs)).num_tokens


# -- the scheduler -----------------------------------------------------------------------------


def make_scheduler(
    num_blocks=64,
    block_size=4,
    budget=64,
    max_num_seqs=8,
    max_model_len=64,
    caching=False,
    **kwargs,
):
    manager = KVCacheManager(num_blocks, block_size, caching)
    return make.make_scheduler(
        manager,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        **kwargs,
    )


def make_swapping(
    num_blocks=8, host=8, mode="swap", block_size=4, budget=64, caching=False, **kwargs
):
    """A traced scheduler with blocks on the host."""
    trace = Trace(num_blocks, block_size, budget)
    manager = KVCacheManager(num_blocks, block_size, caching, host, trace)
    return make.make_scheduler(
        manager, max_num_batched_tokens=budget, max_num_seqs=8, max_model_len=28,
        preemption_mode=mode, trace=trace, **kwargs,
    )  # fmt: skip


def used_blocks(scheduler):
    """Blocks in use: on the device, on the host."""
    manager = scheduler.kv_manager
    used = manager.block_pool.num_usable_blocks - manager.block_pool.num_free_blocks
    return used, len({b for table in manager.swap_space.tables.values() for b in table})


def request(request_id, prompt, max_tokens=4, **params):
    """A request; its prompt may be given as a length."""
    prompt = list(range(prompt)) if isinstance(prompt, int) else prompt
    return Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, **params))


def checked_execute(scheduler, scheduler_output):
    """Fake tokens, after a check of the invariants in the middle of a step."""
    scheduler.check_integrity()
    return loop.fake_execute(scheduler, scheduler_output)


def step(scheduler):
    """Plan and update one step, with tokens that depend on all before them; returns the plan."""
    plan = loop.run_step(scheduler, checked_execute).scheduler_output
    scheduler.check_integrity()
    return plan


def run(scheduler, limit=10_000):
    """Step until no request is left; returns all plans."""
    plans = []
    while scheduler.has_unfinished_requests():
        plans.append(step(scheduler))
        assert plans[-1].num_scheduled_tokens, "a step without progress"
        assert len(plans) < limit
    return plans


# -- the engine --------------------------------------------------------------------------------


def make_llm(directory, **kwargs):
    """An engine on token ids: the small checkpoints have no tokenizer, and need few blocks."""
    kwargs = {"num_gpu_blocks_override": 200, **kwargs}
    return LLM(str(directory), skip_tokenizer_init=True, **kwargs)


def workers_of(llm):
    """The workers of an engine that has them in this process."""
    executor = llm.llm_engine.engine_core.executor
    return getattr(executor, "workers", None) or [executor.worker]


def workload(rng, n, vocab_size, max_len):
    """Prompts and parameters of every kind, drawn from ``rng``."""
    prompts, params = [], []
    common = [rng.randrange(vocab_size) for _ in range(max_len // 2)]
    for _ in range(n):
        length = rng.choice([1, 2, rng.randint(1, max_len // 2), rng.randint(1, max_len // 2)])
        shared = rng.choice([0, 0, length // 2, length])
        fresh = [rng.randrange(vocab_size) for _ in range(length - shared)]
        prompts.append(common[:shared] + fresh)
        params.append(
            SamplingParams(
                temperature=rng.choice([0, 0, 0.5, 1.0, 2.0]),
                top_k=rng.choice([0, -1, 1, 5, 20]),
                top_p=rng.choice([1.0, 1.0, 0.9, 0.5, 0.01]),
                seed=rng.choice([None, rng.randrange(1000)]),
                max_tokens=rng.randint(1, max_len // 2),
                ignore_eos=rng.random() < 0.7,
                stop_token_ids=rng.choice([None, [rng.randrange(vocab_size)]]),
            )
        )
    return prompts, params


def assert_same_free_queue(state, manager):
    """A state that was rebuilt from records knows which block is next, and what the cached hold."""
    pool, size = manager.block_pool, manager.block_size
    assert list(state.free_queue) == [block.block_id for block in pool.free_block_queue]
    found = set() if manager.prefix_cache is None else set(manager.prefix_cache)
    assert state.contents.keys() == {block.block_id for block in found}
    for block_id, content in state.contents.items():
        assert len(content.token_ids) == size
        past = state.sequences[content.seq_id].token_ids
        if state.sequences[content.seq_id].block_ids[content.logical :][:1] == [block_id]:
            assert content.token_ids == tuple(past[content.logical * size :][:size])


def run_and_compare(llm, prompts, params, model=None):
    """Run a workload step by step; returns (tokens compared, tokens exempted).

    The oracle has the engine's model, or another one where several ranks share it.
    """
    engine = llm.llm_engine
    model = model or engine.model_runner.model
    requests = {}
    for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        requests[str(i)] = engine.input_processor.make_request(str(i), prompt, one)
        engine.submit(requests[str(i)])
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update({o.request_id: o for o in engine.step()})
        engine.check_integrity()
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks, "something is left allocated"
    compared = exempted = 0
    for request_id, request in requests.items():
        want = oracle.run(model, request, engine.max_model_len)
        got = outputs[request_id].outputs[0]
        unclear = next((i for i, m in enumerate(want.margins) if m < CLEAR), None)
        upto = len(want.token_ids) if unclear is None else unclear
        assert got.token_ids[:upto] == want.token_ids[:upto], (request_id, params[int(request_id)])
        if unclear is None:
            assert got.token_ids == want.token_ids
            assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason)
        compared += upto
        exempted += len(want.token_ids) - upto
    return compared, exempted


# -- failures -----------------------------------------------------------------------------------


class Disturbed(RuntimeError):
    """Error of a forward pass or a sampler that fails here."""


def fail_once(monkeypatch, owner, name, call):
    """The ``call``-th call of a method raises instead of doing anything."""
    original, calls = getattr(owner, name), []

    def method(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            raise Disturbed
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, method)


# -- processes ---------------------------------------------------------------------------------


def is_alive(pid):
    """True for a process that runs: one that has ended may be there until it is waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=5.0):
    """Wait until a condition holds; fails if it does not within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()
