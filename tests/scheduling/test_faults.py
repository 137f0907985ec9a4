"""A step may fail at any point, any number of times: tokens are as if it had not."""

import random
from functools import partial

import pytest
from faults import COMPUTING, PLANNING, UPDATING, Fault, fault_at, tokens
from helpers import make_llm

from minivllm import BeamSearchParams, SamplingParams
from minivllm.scheduling.policies import SchedulingPolicy

pytestmark = pytest.mark.slow

POINTS = (*PLANNING, *COMPUTING, *UPDATING)


def requests(rng):
    """Prompts that share their beginnings, sampled in every way."""
    common = [rng.randrange(97) for _ in range(9)]
    found = []
    for index in range(7):
        prompt = common[: rng.choice([0, 4, 9])] + [rng.randrange(97) for _ in range(1 + index)]
        params = rng.choice(
            [
                SamplingParams(temperature=0, max_tokens=9),
                SamplingParams(n=3, max_tokens=7, seed=index, ignore_eos=True),
                SamplingParams(max_tokens=8, seed=index, repetition_penalty=1.3, top_p=0.9),
                SamplingParams(max_tokens=8, seed=index, logprobs=2, min_tokens=3),
                BeamSearchParams(beam_width=2, max_tokens=6),
            ]
        )
        found.append((str(index), {"prompt_token_ids": prompt}, params))
    return found


def run(engine, work, before_step=lambda engine: None):
    """Two requests arrive before every step; returns everybody's tokens and logprobs."""
    outputs, work = {}, list(work)
    while work or engine.has_unfinished_requests():
        for request in [work.pop(0) for _ in range(min(2, len(work)))]:
            engine.add_request(*request)
        before_step(engine)
        engine.check_integrity()
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    assert engine.scheduler.kv_manager.usage == 0
    return {
        (r, c.index): (c.token_ids, c.logprobs, c.finish_reason, c.stop_reason)
        for r, output in outputs.items()
        for c in output.outputs
    }


def fail_somewhere(engine, reached, rng):
    """Let the next step fail at some point, now and then.

    After a failure all is computed again, so most steps must be good ones, or no request ends.
    """
    if rng.random() > 0.3:
        return
    caching = engine.scheduler.kv_manager.prefix_cache is not None
    points = [path for path in POINTS if caching or "prefix_cache" not in path]
    path = rng.choice([path for path in points if path not in reached] or points)
    call, after = rng.randrange(2), rng.random() < 0.5
    before = tokens(engine)
    at_last = fault_at(engine, "scheduler.update_from_output", after=True)
    executor = engine.engine_core.executor
    workers = getattr(executor, "workers", None)  # of stages
    runner = rng.choice(workers).model_runner if workers else None
    with at_last, fault_at(engine, path, call, after, runner), pytest.raises(Fault) as fault:
        end_a_step(engine)
    reached.add(str(fault.value).split(",")[0])
    assert tokens(engine) == before, (path, call, after)
    assert engine.scheduler.kv_manager.usage == 0
    engine.check_integrity()


def num_plans(engine):
    return engine.vllm_config.max_concurrent_batches


def end_a_step(engine):
    """Call the engine until it has processed an output: the queue of plans is filled first."""
    for _ in range(num_plans(engine)):
        engine.engine_core.step()


WAYS = {
    "one plan": {},
    "two stages": {"pipeline_parallel_size": 2, "distributed_executor_backend": "together"},
    "overlapped": {"async_scheduling": True},
}


@pytest.mark.combinations(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["recompute", "swap", None])
@pytest.mark.parametrize("caching", [True, False])
def test_a_step_that_fails_at_any_point_changes_no_token(tiny_qwen2, mode, caching, way):
    """All plans in flight are given up."""
    reached, seed = set(), 0
    while len(reached) <= 15:
        seed += 1
        assert seed < 60, sorted(set(POINTS) - reached)
        rng = random.Random(seed)
        kwargs = {
            "block_size": 4, "max_model_len": 48, "num_gpu_blocks_override": rng.choice([19, 26]),
            "max_num_batched_tokens": rng.choice([16, 64]), "preemption_mode": mode,
            "enable_prefix_caching": caching, "trace": True,
        } | WAYS[way]  # fmt: skip
        work = requests(rng)
        want = run(make_llm(tiny_qwen2, **kwargs).llm_engine, work)
        engine = make_llm(tiny_qwen2, **kwargs).llm_engine
        got = run(engine, work, partial(fail_somewhere, reached=reached, rng=rng))
        assert got.keys() == want.keys()
        for key, (token_ids, logprobs, *ends) in got.items():
            assert (token_ids, *ends) == (want[key][0], *want[key][2:]), key
            for one, other in zip(logprobs or (), want[key][1] or (), strict=True):
                assert {t: p.logprob for t, p in one.items()} == pytest.approx(
                    {t: p.logprob for t, p in other.items()}, abs=1e-4
                )


def test_who_is_aborted_after_a_fault_takes_nothing_from_the_others(tiny_qwen2):
    kwargs = {"block_size": 4, "max_model_len": 48, "num_gpu_blocks_override": 40}
    work = requests(random.Random(3))
    want = run(make_llm(tiny_qwen2, **kwargs).llm_engine, work)
    for path in POINTS:
        engine = make_llm(tiny_qwen2, **kwargs).llm_engine
        aborted = []

        def fail_and_abort(engine, path=path, aborted=aborted):
            if aborted:
                return
            try:
                at_last = fault_at(engine, "scheduler.update_from_output", after=True)
                with at_last, fault_at(engine, path):
                    engine.engine_core.step()
            except Fault:
                if len(engine.scheduler.requests) > 3:
                    aborted.append(next(iter(engine.scheduler.requests)))
                    engine.abort_request(aborted)

        got = run(engine, work, fail_and_abort)
        for key in want.keys() - {k for k in want if k[0] in aborted}:
            assert got[key][0] == want[key][0], (path, key)


def test_an_interrupted_step_with_equal_prompts_leaves_no_garbage(tiny_qwen2, monkeypatch):
    """D1: tokens that were not computed must not be found in the prefix cache."""
    llm = make_llm(tiny_qwen2, block_size=4, max_model_len=128)
    prompt, greedy = {"prompt_token_ids": list(range(1, 10))}, SamplingParams(max_tokens=5)
    greedy.temperature = 0.0
    want = llm.generate(prompt, greedy, use_tqdm=False)[0].outputs[0].token_ids
    llm.reset_prefix_cache()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner, "_forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt] * 4, greedy, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.generate(prompt, greedy, use_tqdm=False)[0].outputs[0].token_ids == want


class Moody(SchedulingPolicy):
    """A user's policy that fails when it is asked for a victim, or for a place in the queue."""

    fails = False

    def victim(self, running):
        if self.fails:
            raise LookupError("nobody")
        return super().victim(running)

    def key(self, request):
        if self.fails:
            raise LookupError("no place")
        return super().key(request)


def test_a_policy_that_fails_harms_nobody(tiny_qwen2):
    """D2, D9: the queue is as before, or all wait in it; tokens are as before."""
    policy = Moody()
    llm = make_llm(
        tiny_qwen2, block_size=4, max_model_len=24, num_gpu_blocks_override=8,
        scheduling_policy=policy,
    )  # fmt: skip
    engine, done, num_failed = llm.llm_engine, {}, 0
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [1, 2, 3, 4, 5]}, params)
    while engine.has_unfinished_requests():
        policy.fails = True
        before, queue = tokens(engine), list(engine.scheduler.waiting)
        with pytest.raises(LookupError):
            engine.add_request("c", {"prompt_token_ids": [1]}, params)
        assert (tokens(engine), engine.scheduler.waiting) == (before, queue)
        try:
            outputs = engine.step()
        except LookupError:
            assert tokens(engine) == before
            policy.fails, num_failed = False, num_failed + 1
            outputs = engine.step()
        engine.check_integrity()
        done |= {output.request_id: output.outputs[0].token_ids for output in outputs}
    assert num_failed > 0
    assert done["a"] == done["b"]
    assert len(done["a"]) == 16
