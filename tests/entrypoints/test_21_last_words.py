"""A request is over when the engine has said so: ids used again, pauses that wait, results."""

import asyncio

import pytest
from test_21_async_llm import DELTA, LIMITS, PROMPTS, greedy, ids_of, one_step, soon

from minivllm import AsyncEngineArgs, AsyncLLM, SamplingParams

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["thread", "process"])
def engine(request, tiny_qwen2):
    limits = LIMITS | {"max_num_batched_tokens": 4, "max_model_len": 220}
    engine = AsyncLLM(
        AsyncEngineArgs(
            model=str(tiny_qwen2), skip_tokenizer_init=True, **limits,
            engine_process=request.param == "process",
        )
    )  # fmt: skip
    yield engine
    engine.shutdown()


def test_an_id_is_in_use_until_its_request_has_ended(engine):
    """A second request under an id is refused until then, and later gets its own tokens."""

    async def main():
        want, _ = await ids_of(engine.generate(PROMPTS[2], greedy(6, output_kind=DELTA), "other"))
        for _ in range(10):
            stream = engine.generate(PROMPTS[1], greedy(200, output_kind=DELTA), "again")
            await one_step(engine, stream)
            await stream.aclose()
            again = engine.generate(PROMPTS[2], greedy(6, output_kind=DELTA), "again")
            with pytest.raises(ValueError, match="request_id must be one not in use"):
                await ids_of(again)
            await soon(lambda: not engine.request_ids)
            await engine.resume_generation()
            again = engine.generate(PROMPTS[2], greedy(6, output_kind=DELTA), "again")
            assert (await ids_of(again))[0] == want
        await engine.call("check_integrity")

    asyncio.run(main())


def test_an_event_loop_hears_what_the_last_one_did_not(engine):
    async def leave():
        async for _ in engine.generate(PROMPTS[0], greedy(50, output_kind=DELTA), "left"):
            return

    async def come():
        while await engine.call("has_unfinished_requests"):
            await asyncio.sleep(0.01)
        assert not engine.request_ids
        return await ids_of(engine.generate(PROMPTS[0], greedy(5), "left"))

    asyncio.run(leave())
    assert len(asyncio.run(come())[0]) >= 5


def test_a_pause_waits_for_those_that_are_there(engine):
    """And not for those that come meanwhile, of whom there may always be one."""

    async def main():
        await engine.pause_generation("keep")
        there = asyncio.ensure_future(ids_of(engine.generate(PROMPTS[0], greedy(12), "there")))
        await soon(lambda: engine.num_waiting)
        await engine.resume_generation()
        pausing = asyncio.ensure_future(engine.pause_generation("wait", clear_cache=False))
        await asyncio.sleep(0)
        comes = asyncio.ensure_future(ids_of(engine.generate(PROMPTS[1], greedy(55), "comes")))
        await asyncio.wait_for(pausing, 20)
        assert there.done()
        if not comes.done():
            with pytest.raises(ValueError, match="mode must be 'abort' or 'keep' while requests"):
                await engine.pause_generation("wait")
        await engine.resume_generation()
        await comes

    asyncio.run(main())


def test_all_samples_of_an_aborted_request_end(engine):
    """Also those that would have begun with the end of the prompt."""

    async def main():
        await engine.pause_generation("keep")
        params = SamplingParams(n=3, max_tokens=5, output_kind=DELTA)
        stream = asyncio.ensure_future(
            ids_and_reasons(engine.generate(list(range(30)), params, "three"))
        )
        await soon(lambda: engine.num_waiting)
        await engine.resume_generation(1)  # a step computes four tokens of the prompt
        await soon(lambda: engine.num_running)
        await engine.abort("three")
        reasons = await stream
        await engine.resume_generation()
        return reasons

    assert asyncio.run(main()) == {0: "abort", 1: "abort", 2: "abort"}


async def ids_and_reasons(stream):
    return {c.index: c.finish_reason async for output in stream for c in output.outputs}


@pytest.mark.parametrize("engine", ["process"], indirect=True)
def test_a_call_whose_result_cannot_be_sent_harms_nobody(engine):
    async def main():
        with pytest.raises(ValueError, match="cannot be sent to another process"):
            await engine.call("__getattribute__", "step")
        with pytest.raises(ValueError, match="cannot be sent to the engine's process"):
            await engine.call("make_stats", lambda: 0)
        assert not engine.output_handler._calls
        return await ids_of(engine.generate(PROMPTS[0], greedy(5, output_kind=DELTA), "after"))

    assert len(asyncio.run(main())[0]) == 5
