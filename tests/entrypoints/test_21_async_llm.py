"""AsyncLLM: requests at any time, one wake-up a step, late readers, hang-ups, and death."""

import asyncio
import contextlib
import pickle
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from minivllm import LLM, AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, SamplingParams
from minivllm.engine.core import EngineCore
from minivllm.engine.detokenizer import Detokenizer
from minivllm.engine.serial_utils import decode, encode
from minivllm.executor.exceptions import EngineDeadError
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind
from minivllm.scheduling.livelock import LivelockError
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace.records import Finished, StepStarted

pytestmark = pytest.mark.slow

DELTA = RequestOutputKind.DELTA
LIMITS = {"num_gpu_blocks_override": 61, "block_size": 4, "max_model_len": 64, "max_num_seqs": 4,
          "max_num_batched_tokens": 32, "disable_log_stats": True}  # fmt: skip
NGRAM = {"model": "ngram", "num_speculative_tokens": 3}
PROMPTS = [[(7 * i + j) % 90 for j in range(3 + i % 9)] for i in range(12)]


def greedy(max_tokens=12, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


@pytest.fixture
def model(tiny_qwen2):
    return {"model": str(tiny_qwen2), "skip_tokenizer_init": True, **LIMITS}


@pytest.fixture(params=[False, True], ids=["one plan", "a plan ahead"])
def engine(model, request):
    engine = AsyncLLM(AsyncEngineArgs(**model, async_scheduling=request.param))
    yield engine
    engine.shutdown()
    assert not [t for t in threading.enumerate() if t.name == "minivllm-engine" and t.is_alive()]


async def ids_of(stream, pause=0.0):
    """The token ids of a stream, and how many outputs it came in."""
    found, count = [], 0
    async for output in stream:
        found += output.outputs[0].token_ids
        count += 1
        await asyncio.sleep(pause)
    return found, count


def everything_is_free(engine):
    scheduler = engine.engine_core.scheduler
    pool = scheduler.kv_manager.block_pool
    return not scheduler.requests and pool.num_free_blocks == pool.num_usable_blocks


async def soon(condition, seconds=20.0):  # long: tests share their cores
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        await asyncio.sleep(0.005)


async def one_step(engine, stream):
    """The first output of a stream; the engine has paused behind it, however quick it is."""
    await engine.pause_generation("keep")
    first = asyncio.ensure_future(anext(stream))
    await soon(lambda: engine.num_waiting)
    await engine.resume_generation(1)
    return await first


def test_together_they_get_what_llm_gives_them(engine, model):
    async def main():
        return await asyncio.gather(
            *(
                ids_of(engine.generate(prompt, greedy(output_kind=DELTA), f"r{i}"))
                for i, prompt in enumerate(PROMPTS)
            )
        )

    got = [ids for ids, _ in asyncio.run(main())]
    want = LLM(**model).generate(PROMPTS, greedy(), use_tqdm=False)
    assert got == [output.outputs[0].token_ids for output in want]
    assert everything_is_free(engine)


def test_a_late_reader_gets_his_tokens_joined(engine):
    async def main():
        params = greedy(max_tokens=30, output_kind=DELTA, logprobs=1)
        late = engine.generate(PROMPTS[0], params, "late")
        first = await anext(late)
        await engine.wait_for_requests_to_drain(0)
        await soon(lambda: not engine.engine_core.scheduler.requests)
        await asyncio.sleep(0.05)
        rest = [output async for output in late]
        return first, rest

    first, rest = asyncio.run(main())
    assert len(rest) == 1, "all that came since, in one output"
    (last,) = rest
    assert last.finished
    assert len(first.outputs[0].token_ids) + len(last.outputs[0].token_ids) == 30
    assert len(last.outputs[0].logprobs) == len(last.outputs[0].token_ids)


def test_the_loop_is_woken_once_a_step(engine, monkeypatch):
    """Not once a token: four sequences run together, and wake it as often as one would."""
    woken = []

    async def main():
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def count(callback, *args):
            woken.append(callback)
            return original(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        await engine.pause_generation(mode="keep")
        tasks = [
            asyncio.ensure_future(ids_of(engine.generate(p, greedy(20, output_kind=DELTA), str(i))))
            for i, p in enumerate(PROMPTS[:4])
        ]
        await soon(lambda: engine.num_waiting == 4)
        woken.clear()
        await engine.resume_generation()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert 20 <= len(woken) <= 24


@pytest.mark.parametrize("params", [greedy(50), greedy(50, output_kind=DELTA),
                                    SamplingParams(n=3, max_tokens=40, ignore_eos=True),
                                    BeamSearchParams(3, 40, ignore_eos=True)])  # fmt: skip
def test_who_hangs_up_frees_his_blocks(engine, params):
    """While it waits, while it runs, after its first token: sooner or later than the engine."""

    async def one(number, seconds):
        stream = engine.generate(PROMPTS[number % 12], params, f"r{number}")
        try:
            await asyncio.wait_for(ids_of(stream), seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            await stream.aclose()

    async def main():
        rng = random.Random(3)
        await asyncio.gather(*(one(i, rng.random() * 0.1) for i in range(30)))
        await soon(lambda: everything_is_free(engine))
        await engine.call("check_integrity")
        return await ids_of(engine.generate(PROMPTS[0], greedy(5, output_kind=DELTA), "after"))

    ids, _ = asyncio.run(main())
    assert len(ids) == 5


def test_an_abort_is_a_last_output(engine):
    async def main():
        stream = engine.generate(PROMPTS[0], greedy(50, output_kind=DELTA), "a")
        await one_step(engine, stream)
        await engine.abort("a")
        last = [output async for output in stream][-1]
        return last

    last = asyncio.run(main())
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"


def test_what_is_refused_harms_nobody(engine):
    async def main():
        other = asyncio.ensure_future(
            ids_of(engine.generate(PROMPTS[1], greedy(output_kind=DELTA), "other"))
        )
        for prompt, params, message in (
            ([1, 999], greedy(), "every id in prompt_token_ids must be"),
            ([], greedy(), "the prompt is empty"),
            ([1] * 64, greedy(), "the prompt has 64 tokens"),  # the engine finds this one
            ("text", greedy(), "leaves no tokenizer"),
        ):
            with pytest.raises(ValueError, match=message):
                await ids_of(engine.generate(prompt, params, "bad"))
        stream = engine.generate(PROMPTS[0], greedy(), "twice")
        again = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="request_id must be one not in use"):
            await ids_of(engine.generate(PROMPTS[0], greedy(), "twice"))
        await again
        return await other

    ids, _ = asyncio.run(main())
    assert len(ids) == 12


def test_paused_it_takes_no_step(engine):
    async def main():
        await engine.pause_generation(mode="keep")
        task = asyncio.ensure_future(ids_of(engine.generate(PROMPTS[0], greedy(4), "a")))
        await soon(lambda: engine.num_waiting == 1)
        await asyncio.sleep(0.1)
        assert not task.done()
        assert await engine.is_paused()
        await engine.resume_generation()
        return await task

    ids, outputs = asyncio.run(main())
    assert len(ids) >= 4
    assert outputs >= 1


def test_it_goes_on_for_so_many_steps(model):
    """And pauses again, so that a lesson can look at every step."""
    engine = AsyncLLM(AsyncEngineArgs(**model, trace=True))

    async def main():
        await engine.pause_generation(mode="keep")
        stream = engine.generate(PROMPTS[0], greedy(9, output_kind=DELTA), "a")
        first = asyncio.ensure_future(anext(stream))
        await soon(lambda: engine.num_waiting == 1)
        trace = engine.engine_core.trace
        for steps in (1, 3):
            goal = trace.num_steps + steps
            await engine.resume_generation(num_steps=steps)
            assert trace.num_steps == goal
            await asyncio.sleep(0.1)
            assert trace.num_steps == goal
            assert await engine.is_paused()
        assert (
            len((await first).outputs[0].token_ids)
            + len((await anext(stream)).outputs[0].token_ids)
            == 4
        )
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(ValueError, match="num_steps"):
                await engine.resume_generation(num_steps=wrong)
        await engine.resume_generation()
        ids, _ = await ids_of(stream)
        assert len(ids) == 5
        await engine.resume_generation(num_steps=9)  # nothing is left to do: no step is taken
        assert await engine.is_paused()

    asyncio.run(main())
    engine.shutdown()


def test_a_pause_and_a_resume_answer_all_that_wait_for_steps(model):
    engine = AsyncLLM(AsyncEngineArgs(**model))

    async def main():
        stream = engine.generate(PROMPTS[0], greedy(LIMITS["max_model_len"] - 9), "a")
        await anext(stream)
        for end in (engine.pause_generation("keep"), engine.resume_generation()):
            waits = [asyncio.ensure_future(engine.resume_generation(10**9)) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(wait.done() for wait in waits)
            await end
            await asyncio.gather(*waits)
        await stream.aclose()

    asyncio.run(main())
    engine.shutdown()


def test_a_trace_that_nobody_follows_keeps_the_last_steps(model, monkeypatch):
    """A server may run for days. The state of its queues is known all the same."""
    monkeypatch.setattr("minivllm.engine.core_loop.TRACE_STEPS", 20)
    engine = AsyncLLM(AsyncEngineArgs(**model, trace=True))
    trace, scheduler = engine.engine_core.trace, engine.engine_core.scheduler

    async def main():
        for i in range(30):
            params = SamplingParams(max_tokens=9, ignore_eos=True, n=1 + i % 2)
            await ids_of(engine.generate(PROMPTS[i % 12], params, str(i)))
            assert len(trace.records) < 20 * 30
        stream = engine.generate(PROMPTS[0], greedy(50), "last")
        await anext(stream)
        await engine.pause_generation(mode="keep")
        await engine.call("check_integrity")
        state = trace.state_at(trace.num_steps - 1)
        assert trace.num_steps - trace.first_step in (20, 21)
        assert trace.num_steps > 200
        assert len(state.sequences) < 40, "requests that were over before are forgotten"
        assert state.running == [seq.seq_id for seq in scheduler.running] == ["last"]
        assert state.num_free_blocks == scheduler.kv_manager.block_pool.num_free_blocks
        with pytest.raises(ValueError, match=f"step must be between {trace.first_step - 1} and"):
            trace.state_at(0)

    asyncio.run(main())
    engine.shutdown()
    llm = LLM(**model, trace=True)
    for _ in range(4):
        llm.generate(PROMPTS, greedy(20), use_tqdm=False)
    assert llm.trace.first_step == 0, "where no request waits for ever all are kept"


def test_a_step_that_fails_ends_everybody(model, monkeypatch):
    engine = AsyncLLM(AsyncEngineArgs(**model))
    died = []
    engine.output_handler.on_death = lambda: died.append(True)

    async def main():
        tasks = [
            asyncio.ensure_future(ids_of(engine.generate(p, greedy(50), str(i))))
            for i, p in enumerate(PROMPTS[:6])
        ]
        await soon(lambda: engine.num_running == 4)

        def fail():
            raise RuntimeError("the roof came down")

        monkeypatch.setattr(engine.engine_core, "step", fail)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert all(isinstance(r, EngineDeadError) and "roof" in str(r) for r in results)
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            await ids_of(engine.generate([1], greedy(), "late"))

    asyncio.run(main())
    assert engine.errored
    assert died == [True]


NOTES = """
from minivllm import AsyncLLMEngine
import asyncio


async_engine = AsyncLLMEngine()
async def main():
    response = await async_engine.infer(prompt="Hello, world!")
    print(response)

asyncio.run(main())
"""


def test_infer_as_the_notes_type_it():
    """A script without a guard, an end, or parameters: it prints an answer, and Python ends."""
    done = subprocess.run(
        [sys.executable, "-c", NOTES], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.strip(), "it prints what completes the prompt"
    assert "Error" not in done.stderr


def test_infer_is_generate_to_the_end(tiny_chat):
    assert AsyncLLMEngine is AsyncLLM
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(tiny_chat)))
    text = asyncio.run(engine.infer("Hello, world!", SamplingParams(temperature=0)))
    again = asyncio.run(engine.infer(prompt="Hi"))  # another event loop, the same engine
    engine.shutdown()
    (want,) = LLM(model=str(tiny_chat)).generate(
        "Hello, world!", SamplingParams(temperature=0), use_tqdm=False
    )
    assert text == want.outputs[0].text
    assert isinstance(again, str)


class Closed(SchedulingPolicy):
    def may_admit(self, running):
        return False


class InPairs(SchedulingPolicy):
    """A request waits for a second one."""

    def __init__(self):
        self.seen = set()

    def key(self, request):
        self.seen.add(request.request_id)
        return 0

    def may_admit(self, running):
        return len(self.seen) > 1


class HeldUp(SchedulingPolicy):
    """A step that lasts until a file is there."""

    def __init__(self, path):
        self.go, self.gave_up = path / "go", path / "gave up"

    def may_admit(self, running):
        until = time.monotonic() + 20
        while not self.go.exists():
            if time.monotonic() > until:
                self.gave_up.touch()
                return True
            time.sleep(0.01)
        return True


FORMS = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])


async def last_of(stream):
    """The last output of a stream, and its joined texts and tokens by index."""
    texts, ids = {}, {}
    async for output in stream:
        for c in output.outputs:
            texts[c.index] = texts.get(c.index, "") + c.text
            ids[c.index] = ids.get(c.index, []) + c.token_ids
    return output, texts, ids


def assert_same_logprobs(found, wanted):
    """Equal but for the last bits: another process may add up in another order."""
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for token_id, entry in one.items():
            near = pytest.approx(other[token_id].logprob, abs=1e-5)
            assert entry == replace(other[token_id], logprob=entry.logprob)
            assert entry.logprob == near


@FORMS
def test_a_stop_string_ends_a_request_as_llm_does(process, tiny_chat):
    """The core hears of it a step later; of what it computes until then nothing is shown."""
    limits = LIMITS | {"enable_prefix_caching": False}
    llm = LLM(str(tiny_chat), **limits)
    params = SamplingParams(temperature=1, seed=5, max_tokens=40, n=3, logprobs=0, ignore_eos=True)
    whole = llm.generate("abc", params, use_tqdm=False)[0].outputs
    stop = [whole[0].text[8:10], whole[1].text[3:5]]
    (want,) = llm.generate("abc", replace(params, stop=stop), use_tqdm=False)
    ends = [(c.finish_reason, c.stop_reason) for c in want.outputs]
    assert ("stop", stop[0]) in ends
    engine = AsyncLLM(AsyncEngineArgs(str(tiny_chat), **limits, engine_process=process))

    async def main():
        for kind in (DELTA, RequestOutputKind.FINAL_ONLY):
            asked = replace(params, stop=stop, output_kind=kind)
            for _ in range(3):  # under the same id: it is free as soon as the output is there
                last, texts, ids = await last_of(engine.generate("abc", asked, "same"))
                assert last.finished
                assert not engine.request_ids
                for c in want.outputs:
                    assert (texts[c.index], ids[c.index]) == (c.text, c.token_ids)
                if kind is not DELTA:
                    got = [(c.finish_reason, c.stop_reason) for c in last.outputs]
                    assert got == ends
                    for c, wanted in zip(last.outputs, want.outputs, strict=True):
                        assert_same_logprobs(c.logprobs, wanted.logprobs)
        while await engine.call("has_unfinished_requests"):
            await asyncio.sleep(0.01)
        await engine.call("check_integrity")
        assert not engine.output_handler.stopping
        counted = {m.name: m for m in await engine.get_metrics()}
        num_tokens = sum(len(c.token_ids) for c in want.outputs)
        assert counted["vllm:generation_tokens"].value == 6 * num_tokens
        assert counted["vllm:num_requests_running"].value == 0

    asyncio.run(main())
    engine.shutdown()


@pytest.mark.parametrize("followed", [False, True])
def test_a_stop_string_is_in_the_trace(tiny_chat, followed):
    """It comes between two steps, perhaps behind a request that was added since."""
    engine = AsyncLLM(AsyncEngineArgs(str(tiny_chat), **LIMITS, trace=True))
    core, records = engine.engine_core, []
    if followed:
        engine.follow(records.extend)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    async def main():
        text = await engine.infer("abc", params)
        stopping = replace(params, stop=[text[9:11]])
        await asyncio.gather(*(engine.infer("abc", stopping) for _ in range(6)))
        await engine.call("check_integrity")

    asyncio.run(main())
    engine.shutdown()
    trace = core.trace
    ends = [r.reason for r in records or trace.records if isinstance(r, Finished)]
    assert sorted(ends) == ["length"] + 6 * ["stop"]
    assert followed or not trace.state_at(trace.num_steps - 1).running


def test_a_text_that_cannot_be_made_ends_everybody(tiny_chat, monkeypatch):
    """It is made in the event loop, where an exception would otherwise end nothing."""
    engine = AsyncLLM(AsyncEngineArgs(str(tiny_chat), **LIMITS))

    async def main():
        await engine.pause_generation("keep")
        streams = [ids_of(engine.generate("abc", greedy(50), str(i))) for i in range(3)]
        tasks = [asyncio.ensure_future(stream) for stream in streams]
        await soon(lambda: engine.num_waiting == 3)

        def fail(*_):
            raise RuntimeError("no such character")

        monkeypatch.setattr(Detokenizer, "append", fail)
        resumed = asyncio.ensure_future(engine.resume_generation())
        got = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        await asyncio.wait([resumed])
        assert all(isinstance(e, EngineDeadError) and "no such character" in str(e) for e in got)
        with pytest.raises(EngineDeadError):
            await engine.check_health()

    asyncio.run(main())
    engine._client._thread.join(10)
    assert not engine._client._thread.is_alive()


@FORMS
def test_who_asks_never_waits_for_a_step(model, process, tmp_path):
    """Nor for a full pipe: these prompts are more than one holds."""
    policy = HeldUp(tmp_path)
    engine = AsyncLLM(AsyncEngineArgs(**model, scheduling_policy=policy, engine_process=process))
    prompt = {"prompt": "long " * 100_000, "prompt_token_ids": PROMPTS[0]}

    async def main():
        streams = [await engine.add_request(str(i), prompt, greedy(3)) for i in range(8)]
        policy.go.touch()
        return [await stream.get() for stream in streams]

    outputs = asyncio.run(main())
    engine.shutdown()
    assert not policy.gave_up.exists()
    assert all(output.prompt == prompt["prompt"] for output in outputs)


def test_an_engine_is_made_in_its_own_thread(model, monkeypatch):
    """Each thread that runs OpenMP's loops keeps a pool of threads: one pool is enough."""
    made = []

    class Made(EngineCore):
        def __init__(self, *args, **options):
            made.append(threading.current_thread().name)
            super().__init__(*args, **options)

    monkeypatch.setattr("minivllm.engine.pipeline.EngineCore", Made)
    AsyncLLM(AsyncEngineArgs(**model)).shutdown()
    assert made == ["minivllm-engine"]
    with pytest.raises(ValueError, match="max_model_len"):
        AsyncLLM(AsyncEngineArgs(**(model | {"max_model_len": 10**9})))
    assert not [t for t in threading.enumerate() if t.name == "minivllm-engine" and t.is_alive()]


@pytest.mark.parametrize("kind", [DELTA, RequestOutputKind.CUMULATIVE])
def test_a_reader_may_change_what_he_gets(engine, kind):
    """All outputs of a request show the same list of its prompt's ids; the engine's is another."""

    async def main():
        params, lengths = greedy(9, output_kind=kind, prompt_logprobs=1), []
        async for output in engine.generate(PROMPTS[0], params, "a"):
            lengths.append(len(output.prompt_token_ids))
            output.prompt_token_ids.append(89)
        return lengths, output.outputs[0].token_ids

    lengths, _ = asyncio.run(main())
    assert lengths[0] == len(PROMPTS[0])
    asyncio.run(engine.call("check_integrity"))
    assert everything_is_free(engine)


@FORMS
def test_a_policy_that_admits_nobody_is_named_and_the_engine_rests(model, process):
    args = AsyncEngineArgs(**model, scheduling_policy=Closed(), engine_process=process)
    engine = AsyncLLM(args)

    async def main():
        asked = [ids_of(engine.generate(p, greedy(), str(i))) for i, p in enumerate(PROMPTS[:3])]
        got = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        assert [type(error) for error in got] == [LivelockError] * 3
        assert "Closed admits no request: 3 unfinished requests wait" in str(got[0])
        await engine.call("check_integrity")
        await engine.check_health()

    asyncio.run(main())
    if not process:
        assert everything_is_free(engine)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1, "it waits for a message, and does not spin"
    engine.shutdown()


def test_a_policy_may_wait_for_company(model):
    engine = AsyncLLM(AsyncEngineArgs(**model, scheduling_policy=InPairs()))

    async def main():
        first = asyncio.ensure_future(
            ids_of(engine.generate(PROMPTS[0], greedy(5, output_kind=DELTA), "a"))
        )
        await asyncio.sleep(0.2)
        assert not first.done()
        second = asyncio.ensure_future(
            ids_of(engine.generate(PROMPTS[1], greedy(5, output_kind=DELTA), "b"))
        )
        return await asyncio.gather(first, second)

    assert [len(ids) for ids, _ in asyncio.run(main())] == [5, 5]
    engine.shutdown()


def test_an_event_loop_that_ends_takes_nobody_with_it(engine):
    async def ask_and_go():
        async for _ in engine.generate(PROMPTS[0], greedy(55), "gone"):
            return

    for _ in range(3):  # the engine is in a step when the loop closes: its outputs have no reader
        asyncio.run(ask_and_go())
        time.sleep(0.05)
    ids, _ = asyncio.run(ids_of(engine.generate(PROMPTS[0], greedy(output_kind=DELTA), "next")))
    assert len(ids) == 12
    assert everything_is_free(engine)


# -- the same in a process ---------------------------------------------------------------------


def test_a_process_gives_the_same_and_its_death_is_noticed(model):
    engine = AsyncLLM(AsyncEngineArgs(**model, engine_process=True))

    async def main():
        streams = [
            ids_of(engine.generate(prompt, greedy(output_kind=DELTA), f"r{i}"))
            for i, prompt in enumerate(PROMPTS)
        ]
        got = [ids for ids, _ in await asyncio.gather(*streams)]
        with pytest.raises(ValueError, match="the prompt has 64 tokens"):
            await ids_of(engine.generate([1] * 64, greedy(), "bad"))
        function = SamplingParams(logits_processors=[lambda ids, logits: logits])
        with pytest.raises(ValueError, match="cannot be sent to the engine's process"):
            await ids_of(engine.generate([1], function, "unpicklable"))
        assert await engine.reset_prefix_cache()
        counted = {m.name: m for m in await engine.get_metrics()}
        assert counted["vllm:generation_tokens"].value == 12 * len(PROMPTS)
        stream = engine.generate(PROMPTS[0], greedy(55), "last")
        await one_step(engine, stream)
        engine._client._process.kill()
        with pytest.raises(EngineDeadError, match="its process has ended: -9"):
            await asyncio.wait_for(ids_of(stream), 20)
        return got

    got = asyncio.run(main())
    want = LLM(**model).generate(PROMPTS, greedy(), use_tqdm=False)
    assert got == [output.outputs[0].token_ids for output in want]
    assert engine.errored
    engine.shutdown()
    assert not engine._client._process.is_alive()


def strings_in(value):
    """All strings in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        return strings_in([*value, *value.values()])
    if isinstance(value, (tuple, list)):
        return set().union(*map(strings_in, value))
    return {value} if isinstance(value, str) else set()


def test_what_crosses_are_ids_and_comes_back_whole(tiny_chat):
    engine = LLM(str(tiny_chat), **LIMITS, speculative_config=NGRAM).llm_engine
    core = engine.engine_core
    for i in range(3):
        params = SamplingParams(temperature=i / 2, max_tokens=20, n=1 + i // 2, seed=i, logprobs=2,
                                prompt_logprobs=1, ignore_eos=True)  # fmt: skip
        prompt = {"prompt": "some text", "prompt_token_ids": [5, 6] * 8}
        core.add_request(engine.input_processor.make_request(f"r{i}", prompt, params))
    verified = 0
    while core.has_unfinished_requests():
        outputs = core.step()
        outputs.scheduler_stats = core.make_stats()
        outputs.utility_outputs = [(3, 4.5)]
        outputs.records = [StepStarted(4, 0.5)]
        encoded = pickle.loads(pickle.dumps(encode(outputs)))
        assert strings_in(encoded) <= {"r0", "r1", "r2", "length"}, "neither text nor field names"
        assert decode(encoded) == outputs
        verified += outputs.scheduler_stats.spec_decoding_stats is not None
    assert verified


def test_refused_requests_are_forgotten(model):
    engine = AsyncLLM(AsyncEngineArgs(**model, engine_process=True))

    async def main():
        for i, prompt in enumerate(([1] * 64, [1, 2])):
            with contextlib.suppress(ValueError):
                await ids_of(engine.generate(prompt, greedy(), str(i)))
        stream = engine.generate([1, 2], greedy(55), "leaves")
        await anext(stream)
        await stream.aclose()
        await soon(lambda: not engine.output_processor.request_states)

    asyncio.run(main())
    engine.shutdown()


def test_what_making_the_engine_raises_comes_over_the_pipe():
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        AsyncLLM(AsyncEngineArgs(model="/no/such/model", engine_process=True))
