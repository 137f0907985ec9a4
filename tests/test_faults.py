"""A step is a transaction: it may fail at any point, any number of times, and nobody notices."""

import random
from functools import partial

import pytest
from helpers import examples, make_llm

from minivllm import BeamSearchParams, SamplingParams
from minivllm.lab.faults import BOOKING, COMPUTING, PLANNING, Fault, books, fault_at
from minivllm.scheduling.policies import SchedulingPolicy

pytestmark = pytest.mark.slow

POINTS = (*PLANNING, *COMPUTING, *BOOKING)


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
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    assert engine.scheduler.kv_manager.usage == 0
    return {
        (r, c.index): (c.token_ids, c.logprobs, c.finish_reason, c.stop_reason)
        for r, output in outputs.items()
        for c in output.outputs
    }


def fail_everywhere(engine, reached, rng):
    """Let the next step fail at one point after the other."""
    caching = engine.scheduler.kv_manager.prefix_cache is not None
    points = [path for path in POINTS if caching or "prefix_cache" not in path]
    for path in rng.sample(points, 12):
        call, after = rng.randrange(2), rng.random() < 0.5
        before = books(engine)
        with fault_at(engine, path, call, after):
            try:
                if path in PLANNING:
                    engine.scheduler.schedule()
                    engine.scheduler.roll_back(executed=False)  # not reached: as if it had been
                else:
                    with fault_at(engine, "scheduler.kv_manager.commit"):  # at the latest
                        engine.engine_core.step()
            except Fault as fault:
                reached.add(str(fault).split(",")[0])
        now = books(engine)
        assert path in COMPUTING + BOOKING or now == before, (path, call, after)
        for name in ("sequences", "requests", "told", "runner"):
            if now["preemptions"] == before["preemptions"]:
                assert now[name] == before[name], (path, name)
        engine.check_integrity()


@pytest.mark.parametrize("mode", ["recompute", "swap", None])
@pytest.mark.parametrize("caching", [True, False])
def test_a_step_that_fails_at_any_point_has_never_been(tiny_qwen2, mode, caching):
    reached = set()
    for seed in range(examples(2).max_examples):
        rng = random.Random(seed)
        kwargs = {
            "block_size": 4, "max_model_len": 48, "num_gpu_blocks_override": rng.choice([19, 26]),
            "max_num_batched_tokens": rng.choice([9, 64]), "preemption_mode": mode,
            "enable_prefix_caching": caching, "trace": True,
        }  # fmt: skip
        work = requests(rng)
        want = run(make_llm(tiny_qwen2, **kwargs).llm_engine, work)
        engine = make_llm(tiny_qwen2, **kwargs).llm_engine
        got = run(engine, work, partial(fail_everywhere, reached=reached, rng=rng))
        assert got.keys() == want.keys()
        for key, (token_ids, logprobs, *ends) in got.items():
            assert (token_ids, *ends) == (want[key][0], *want[key][2:]), key
            for one, other in zip(logprobs or (), want[key][1] or (), strict=True):
                assert {t: p.logprob for t, p in one.items()} == pytest.approx(
                    {t: p.logprob for t, p in other.items()}, abs=1e-4
                )
    assert len(reached) > 15, sorted(set(POINTS) - reached)


def test_who_is_aborted_after_a_fault_takes_nothing_from_the_others(tiny_qwen2):
    kwargs = {"block_size": 4, "max_model_len": 48, "num_gpu_blocks_override": 40}
    work = requests(random.Random(3))
    want = run(make_llm(tiny_qwen2, **kwargs).llm_engine, work)
    for path in POINTS:
        engine = make_llm(tiny_qwen2, **kwargs).llm_engine
        aborted = []

        def fail_and_abort(engine, path=path, aborted=aborted):
            try:
                with fault_at(engine, path), fault_at(engine, "scheduler.kv_manager.commit"):
                    engine.engine_core.step()
            except Fault:
                if not aborted and len(engine.scheduler.requests) > 3:
                    aborted.append(next(iter(engine.scheduler.requests)))
                    engine.abort_request(aborted)

        got = run(engine, work, fail_and_abort)
        for key in want.keys() - {k for k in want if k[0] in aborted}:
            assert got[key][0] == want[key][0], (path, key)


def test_an_interrupted_step_with_equal_prompts_leaves_no_garbage(tiny_qwen2, monkeypatch):
    """D1: what nobody has computed must not be found in the prefix cache."""
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
    """A policy of a user's that fails when it is asked for a victim, or where somebody stands."""

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
    """D2, D9: the plan and the queue are as before."""
    policy = Moody()
    llm = make_llm(
        tiny_qwen2, block_size=4, max_model_len=24, num_gpu_blocks_override=8,
        scheduling_policy=policy,
    )  # fmt: skip
    engine, done = llm.llm_engine, {}
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [1, 2, 3, 4, 5]}, params)
    while engine.has_unfinished_requests():
        policy.fails = True
        before = books(engine)
        with pytest.raises(LookupError):
            engine.add_request("c", {"prompt_token_ids": [1]}, params)
        assert books(engine) == before
        try:
            outputs = engine.step()
        except LookupError:
            assert books(engine) == before
            policy.fails = False
            outputs = engine.step()
        engine.check_integrity()
        done |= {output.request_id: output.outputs[0].token_ids for output in outputs}
    assert engine.scheduler.num_preemptions > 0
    assert done["a"] == done["b"]
    assert len(done["a"]) == 16
