"""Asynchronous scheduling: decisions are vLLM's, answers are those of one plan at a time."""

import random
import time
from concurrent.futures import Future

import pytest
from helpers import assert_decides_as, examples, make_llm, request, run_and_compare, workload
from hypothesis import given
from hypothesis import strategies as st

from minivllm import LLM, BeamSearchParams, SamplingParams
from minivllm.config import SchedulerConfig
from minivllm.config.async_scheduling import resolve_async_scheduling
from minivllm.config.parallel import ParallelConfig
from minivllm.config.speculative import SpeculativeConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.recordings import ASYNC_GOLDEN
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.request import RequestStatus
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import RankWorked, StepPlanned, TokensWasted


@pytest.mark.parametrize("path", ASYNC_GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Every call, placeholders and discarded tokens included; two of the files have stages."""
    assert_decides_as(path)


# -- without a model -----------------------------------------------------------------------------


class Engine:
    """A scheduler with a queue of plans and a runner without a model."""

    def __init__(self, size, trace=None, num_blocks=14, **limits):
        manager = KVCacheManager(num_blocks, 4, True, num_host_blocks=20, trace=trace)
        cls = AsyncScheduler if size > 1 else Scheduler
        config = SchedulerConfig(**{"max_num_seqs": 6, "max_model_len": 40} | limits)
        self.scheduler = cls(config, manager, trace)
        self.queue = BatchQueue(self.scheduler, size)
        self.runner = StubRunner()
        self.num_scheduled = 0

    def execute(self, plan):
        self.num_scheduled += plan.total_num_scheduled_tokens
        future = Future()
        future.set_result(self.runner.execute(plan))
        return future

    def step(self):
        oldest = self.queue.advance(self.execute)
        if oldest is not None:
            plan, output = oldest
            self.scheduler.update_from_output(plan, output)
        self.scheduler.check_integrity()

    def run(self):
        while self.queue.has_work:
            self.step()
        assert self.scheduler.kv_manager.usage == 0


def drawn_requests(rng):
    for i in range(12):
        n, longest = rng.choice([(1, 20), (1, 20), (3, 6)])
        prompt = [rng.randrange(9) for _ in range(rng.randrange(1, longest))]
        stops = rng.sample(range(5, 1005), rng.choice([0, 60]))
        most = rng.randrange(1, 12)
        yield request(str(i), prompt, max_tokens=most, n=n, stop_token_ids=stops)


def answers(seed, size, trace=None):
    """Tokens and ends of drawn requests; and of whom a token was wasted."""
    rng = random.Random(seed)
    requests = list(drawn_requests(rng))
    limits = {
        "max_num_batched_tokens": rng.choice([6, 12, 40]),
        "policy": rng.choice(["fcfs", "priority"]),
        "preemption_mode": rng.choice(["recompute", "swap", None]),
    }
    engine = Engine(size, trace, **limits)
    to_come = list(requests)
    while to_come or engine.queue.has_work:
        for one in [to_come.pop(0) for _ in range(min(2, len(to_come)))]:
            engine.scheduler.add_request(one)
        engine.step()
    engine.run()
    ends = {s.seq_id: (s.output_token_ids, s.status) for one in requests for s in one.seqs}
    return ends, engine


@pytest.mark.parametrize("size", [2, 3])
def test_answers_are_those_of_one_plan_at_a_time(size):
    """And what is wasted is behind a stop token: at most a token for each other plan in flight."""
    num_preemptions = num_wasted = 0
    for seed in range(60):
        want, _ = answers(seed, 1)
        trace = Trace(14, 4, 64)
        got, engine = answers(seed, size, trace)
        assert got == want, seed
        num_preemptions += engine.scheduler.num_preemptions
        num_wasted += engine.queue.num_wasted_tokens
        wasted = list(trace.of(TokensWasted))
        assert sum(record.num_tokens for record in wasted) == engine.queue.num_wasted_tokens
        for seq_id in {record.seq_id for record in wasted}:
            _, status = got[seq_id]
            assert status == RequestStatus.FINISHED_STOPPED
            assert sum(r.num_tokens for r in wasted if r.seq_id == seq_id) < size
    assert num_preemptions > 20
    assert num_wasted > 20


def test_a_length_limit_wastes_nothing_and_a_stop_token_one():
    engine = Engine(2, num_blocks=40)
    engine.scheduler.add_request(request("a", 4, max_tokens=6))
    engine.run()
    assert (engine.num_scheduled, engine.queue.num_wasted_tokens) == (4 + 5, 0)
    engine = Engine(2, num_blocks=40)
    engine.scheduler.add_request(one := request("a", 4, max_tokens=6))
    engine.run()
    stop = one.seqs[0].output_token_ids[2]
    engine.scheduler.add_request(one := request("b", 4, max_tokens=6, stop_token_ids=[stop]))
    engine.run()
    assert one.seqs[0].num_output_tokens == 3
    assert engine.queue.num_wasted_tokens == 1


def test_the_id_of_a_request_that_has_ended_may_be_used_at_once():
    """A token of the old one that is on its way is not the new one's."""
    engine = Engine(2, num_blocks=40)
    engine.scheduler.add_request(request("a", [7, 7, 7], max_tokens=9))
    for _ in range(3):
        engine.step()
    engine.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    engine.scheduler.add_request(new := request("a", [1, 2, 3], max_tokens=5))
    engine.run()
    alone = Engine(1, num_blocks=40)
    alone.scheduler.add_request(want := request("a", [1, 2, 3], max_tokens=5))
    alone.run()
    assert new.seqs[0].output_token_ids == want.seqs[0].output_token_ids
    assert engine.queue.num_wasted_tokens == 1


def test_requests_that_must_know_their_token_wait_and_others_go_on():
    engine = Engine(2, num_blocks=40)
    engine.scheduler.add_request(request("samples", 4, max_tokens=4, n=2))
    engine.scheduler.add_request(request("alone", 4, max_tokens=4))
    plans = []
    execute = engine.execute
    engine.execute = lambda plan: plans.append(list(plan.num_scheduled_tokens)) or execute(plan)
    engine.run()
    assert plans[:3] == [["samples", "alone"], ["alone"], ["samples", "samples/1", "alone"]]


# -- with one ------------------------------------------------------------------------------------


def drawn_params(draw, vocab_size):
    """Sampling parameters of every kind."""
    kind = draw(st.sampled_from(["greedy", "seeded", "samples", "beams", "penalties", "bad words"]))
    most = draw(st.integers(1, 9))
    common = {"max_tokens": most, "ignore_eos": draw(st.booleans()), "logprobs": 2}
    stops = draw(st.lists(st.integers(0, vocab_size - 1), max_size=8))
    seed = draw(st.integers(0, 99))
    match kind:
        case "greedy":
            return SamplingParams(temperature=0, stop_token_ids=stops, **common)
        case "seeded":
            return SamplingParams(seed=seed, top_p=0.9, min_tokens=min(2, most), **common)
        case "samples":
            return SamplingParams(n=3, seed=seed, stop_token_ids=stops, **common)
        case "beams":
            return BeamSearchParams(beam_width=2, max_tokens=most)
        case "penalties":
            penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.5}
            return SamplingParams(seed=seed, **penalties, **common)
        case _:
            allowed = draw(st.sets(st.integers(0, vocab_size - 1), min_size=5, max_size=40))
            return SamplingParams(seed=seed, allowed_token_ids=sorted(allowed), **common)


def run(engine, work, aborts):
    """Run requests, two more before every step. Returns the answers that ended by themselves."""
    outputs, to_come, number = {}, list(enumerate(work)), 0
    while to_come or engine.has_unfinished_requests():
        for index, (prompt, params) in [to_come.pop(0) for _ in range(min(2, len(to_come)))]:
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        engine.abort_request([name for name, at in aborts.items() if at == number])
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
        number += 1
    assert engine.scheduler.kv_manager.usage == 0
    return {
        (name, c.index): (c.token_ids, c.logprobs, c.finish_reason, c.stop_reason)
        for name, output in outputs.items()
        if name not in aborts
        for c in output.outputs
    }


ENGINES = {}  # by settings: an engine serves many examples


def engine_for(directory, **settings):
    key = str(directory), *sorted(settings.items())
    if key not in ENGINES:
        usual = {"block_size": 4, "max_model_len": 48, "seed": 5}
        ENGINES[key] = make_llm(directory, **usual | settings).llm_engine
    return ENGINES[key]


@pytest.mark.parametrize("backend", ["uni", "mp"])
def test_every_answer_is_the_synchronous_one(tiny_qwen2, backend):
    """Mixtures of all kinds, in tight pools, with aborts."""

    @examples(12 if backend == "uni" else 4)
    @given(data=st.data())
    def check(data):
        settings = {
            "num_gpu_blocks_override": data.draw(st.sampled_from([16, 26])),
            "max_num_batched_tokens": data.draw(st.sampled_from([9, 64])),
            "enable_prefix_caching": data.draw(st.booleans()),
        }
        common = data.draw(st.lists(st.integers(3, 90), min_size=9, max_size=9))
        work = []
        for index in range(data.draw(st.integers(1, 7))):
            prompt = common[: data.draw(st.sampled_from([0, 4, 9]))] + [index + 3] * (1 + index)
            work.append((prompt, drawn_params(data.draw, 97)))
        names = [str(index) for index in range(len(work))]
        aborts = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 12), max_size=2))
        want = run(engine_for(tiny_qwen2, **settings), work, aborts)
        overlapped = {"async_scheduling": True, "distributed_executor_backend": backend}
        engine = engine_for(tiny_qwen2, **settings, **overlapped)
        got = run(engine, work, aborts)
        assert got.keys() == want.keys()
        for key, (token_ids, logprobs, *ends) in got.items():
            assert (token_ids, *ends) == (want[key][0], *want[key][2:]), key
            for one, other in zip(logprobs or (), want[key][1] or (), strict=True):
                assert {t: p.logprob for t, p in one.items()} == pytest.approx(
                    {t: p.logprob for t, p in other.items()}, abs=1e-4
                )

    try:
        check()
    finally:
        for key in [key for key in ENGINES if backend in str(key)]:
            ENGINES.pop(key).shutdown()


@pytest.mark.parametrize(
    "settings",
    [
        {"num_gpu_blocks_override": 20, "max_num_batched_tokens": 16},
        {"tensor_parallel_size": 2, "distributed_executor_backend": "together"},
    ],
    ids=["tight", "two ranks"],
)
def test_the_oracle_agrees(tiny_qwen2, settings):
    usual = {"block_size": 4, "max_model_len": 48, "async_scheduling": True}
    llm = make_llm(tiny_qwen2, **usual, **settings)
    model = None
    if "tensor_parallel_size" in settings:
        model = make_llm(tiny_qwen2, max_model_len=48).llm_engine.model_runner.model
    prompts, params = workload(random.Random(1), 16, 97, 40)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    compared, _ = run_and_compare(llm, inputs, params, model)
    assert compared > 50


def test_an_8_bit_cache_says_the_same(tiny_qwen2):
    prompts, params = workload(random.Random(2), 12, 97, 40)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    usual = {"block_size": 4, "max_model_len": 48, "kv_cache_dtype": "int8_per_token_head"}
    said = [
        [
            output.outputs[0].token_ids
            for output in make_llm(tiny_qwen2, async_scheduling=overlapped, **usual).generate(
                inputs, params, use_tqdm=False
            )
        ]
        for overlapped in (False, True)
    ]
    assert said[0] == said[1]


def share_planned_in_time(slow_down=lambda llm: None, **kwargs):
    """The share of 64 decodes whose next plan was made before the device had ended them."""
    llm = LLM(trace=True, max_model_len=256, num_gpu_blocks_override=100, **kwargs)
    slow_down(llm)
    params = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0)
    llm.generate(["Hello"] * 4, params, use_tqdm=False)
    engine = llm.llm_engine
    ended = {record.plan: record.end for record in engine.trace.of(RankWorked)}
    planned = {record.step: record.time for record in engine.trace.of(StepPlanned)}
    steps = [n for n in ended if n + 1 in ended]
    engine.shutdown()
    assert len(steps) > 60
    return sum(planned[n + 1] < ended[n] for n in steps) / len(steps)


def test_a_step_is_planned_while_the_one_before_it_runs():
    """The device takes a hundredth of a second for a step, far longer than a plan does."""

    def slow_down(llm):
        compute = llm.llm_engine.model_runner.execute_model

        def slowly(plan):
            time.sleep(0.01)
            return compute(plan)

        llm.llm_engine.model_runner.execute_model = slowly

    assert share_planned_in_time(slow_down, async_scheduling=True) >= 0.9


@pytest.mark.slow
def test_processes_overlap():
    """A busy machine may hide it, but not three times."""
    kwargs = {"distributed_executor_backend": "mp"}
    assert share_planned_in_time(async_scheduling=False, **kwargs) == 0
    assert any(share_planned_in_time(async_scheduling=True, **kwargs) >= 0.9 for _ in range(3))


# -- what is refused, and what is chosen -----------------------------------------------------------

NGRAM = SpeculativeConfig(num_speculative_tokens=2, method="ngram")
DRAFT = SpeculativeConfig(num_speculative_tokens=2, model="some/model")


def settle(asked, **changes):
    usual = {
        "is_on_cpu": False,
        "runner_type": "generate",
        "speculative_config": None,
        "parallel_config": ParallelConfig(),
    }
    return resolve_async_scheduling(asked, **usual | changes)


def test_it_is_on_with_a_gpu_and_off_on_a_cpu():
    assert settle(None)
    assert not settle(None, is_on_cpu=True)
    assert settle(True, is_on_cpu=True)
    assert not settle(False)
    assert not settle(None, parallel_config=ParallelConfig(pipeline_parallel_size=2))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"runner_type": "pooling"}, "Disabling asynchronous scheduling by default for pooling"),
        (
            {"speculative_config": NGRAM},
            "Async scheduling not supported with ngram-based speculative decoding and will be",
        ),
        (
            {"parallel_config": ParallelConfig(distributed_executor_backend="ray")},
            "not supported with the `ray` distributed executor backend",
        ),
    ],
    ids=["pooling", "n-grams", "ray"],
)
def test_what_cannot_do_with_it_turns_it_off(caplog, changes, line):
    with caplog.at_level("DEBUG", logger="minivllm"):
        assert not settle(None, **changes)
    assert line in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_config": NGRAM}, "Currently, async scheduling is only supported with EAGLE"),
        ({"speculative_config": DRAFT}, "with a draft model, as vLLM has it, is left out here"),
        (
            {"parallel_config": ParallelConfig(distributed_executor_backend="ray")},
            "`ray` does not support async scheduling yet.",
        ),
        (
            {"parallel_config": ParallelConfig(pipeline_parallel_size=2)},
            "with pipeline_parallel_size=2, as vLLM has it, is left out here",
        ),
    ],
    ids=["n-grams", "draft model", "ray", "stages"],
)
def test_what_cannot_do_with_it_is_refused_if_it_is_asked_for(changes, message):
    with pytest.raises(ValueError, match=message):
        settle(True, **changes)
