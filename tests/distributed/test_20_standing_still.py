"""An engine's process that stands still: nobody else waits for it, and nothing is lost."""

import asyncio
import os
import signal
import threading
from contextlib import contextmanager

import httpx
import pytest
from helpers import is_alive, wait_until
from http_server import RunningServer

from minivllm import AsyncEngineArgs, AsyncLLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

PROMPT = list(range(3, 90)) * 20  # long: a pipe has room for some dozens of them
MANY = 250
LIMITS = {"num_gpu_blocks_override": 600, "max_model_len": 1800, "disable_log_stats": True}
GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def make_engine(size, **more):
    args = LIMITS | more
    return AsyncLLM(AsyncEngineArgs(engine_process=True, data_parallel_size=size, **args))


@pytest.fixture(scope="module", params=[1, 2], ids=["process", "replicas"])
def engine(request):
    engine = make_engine(request.param)
    yield engine
    engine.shutdown()


def processes(engine):
    return [one._process for one in getattr(engine._client, "clients", [engine._client])]


@contextmanager
def standing_still(process, seconds=120.0):
    """Stop a process for a while; one for which somebody waits goes on, and the test fails."""
    waited_for = threading.Event()

    def go_on():
        waited_for.set()
        os.kill(process.pid, signal.SIGCONT)

    os.kill(process.pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, go_on)
    timer.start()
    try:
        yield
        assert not waited_for.is_set(), "somebody has waited for a process that stands still"
    finally:
        timer.cancel()
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)


def thread_names():
    return {thread.name for thread in threading.enumerate()}


async def last_of(stream):
    return [output async for output in stream][-1]


def test_a_server_answers_while_a_replica_stands_still():
    engine = make_engine(2, max_num_batched_tokens=2048)
    last = processes(engine)[1]
    body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}

    async def use(url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=200, limits=limits) as client:

            async def complete(rank, prompt=PROMPT):
                headers = {"X-data-parallel-rank": str(rank)}
                one = body | {"prompt": prompt}
                answer = await client.post("/v1/completions", json=one, headers=headers)
                return answer.status_code, answer.json()["choices"][0]["text"]

            want = await complete(1)
            with standing_still(last):
                waiting = [asyncio.ensure_future(complete(1)) for _ in range(MANY)]
                while engine._client.load_balancer.loads[1].num_in_flight < MANY:
                    assert (await client.get("/health")).status_code == 200
                assert await complete(0) == want
                free = await client.post("/v1/completions", json=body)  # the other has less to do
                assert free.json()["choices"][0]["text"] == want[1]
                assert "vllm:num_requests_running" in (await client.get("/metrics")).text
                waiting[0].cancel()  # it hangs up
                assert not any(one.done() for one in waiting[1:])
            assert await asyncio.gather(*waiting[1:]) == [want] * (MANY - 1)

    server = RunningServer(engine=engine)
    asyncio.run(use(server.url))
    wait_until(lambda: not engine.request_ids)
    server.stop()
    wait_until(lambda: not last.is_alive(), seconds=30)


def test_what_waits_is_sent_in_order_when_it_goes_on(engine):
    async def use():
        last = engine.data_parallel_size - 1
        await engine.pause_generation()  # so that none ends before its abort is read
        with standing_still(processes(engine)[-1]):
            waiting = [
                asyncio.ensure_future(
                    last_of(engine.generate(PROMPT, GREEDY, str(i), data_parallel_rank=last))
                )
                for i in range(MANY)
            ]
            while len(engine.request_ids) < MANY:
                await asyncio.sleep(0)
            await engine.abort([str(i) for i in range(0, MANY, 2)])
            waiting[1].cancel()
            with pytest.raises(ValueError, match="request_id must be one not in use"):
                await last_of(engine.generate(PROMPT, GREEDY, "0"))
        await engine.resume_generation()
        outputs = await asyncio.gather(*waiting, return_exceptions=True)
        reasons = [getattr(o, "outputs", [None])[0] for o in outputs]
        reasons = [one and one.finish_reason for one in reasons]
        assert reasons == ["abort", None, *["abort", "length"] * (MANY // 2 - 1)]
        assert len(await last_tokens()) == 2
        await engine.call("check_integrity")

    async def last_tokens():
        return (await last_of(engine.generate(PROMPT, GREEDY, "0"))).outputs[0].token_ids

    asyncio.run(use())


def test_one_that_stands_still_is_ended(engine):
    """Also while much waits to be sent to it; and all of several in the time of one."""
    ended = processes(engine)

    async def leave():
        streams = [engine.generate(PROMPT, GREEDY, str(i)) for i in range(MANY)]
        tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
        while len(engine.request_ids) < MANY:
            await asyncio.sleep(0)
        return tasks

    for process in ended:
        os.kill(process.pid, signal.SIGSTOP)
    pids = [process.pid for process in ended]
    kill_late = threading.Timer(120, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
    kill_late.start()
    tasks = asyncio.run(leave())
    assert tasks
    engine._client.shutdown(timeout=0.5)
    assert kill_late.is_alive(), "somebody has waited for a process that stands still"
    kill_late.cancel()
    assert not any(map(is_alive, pids))
    wait_until(lambda: not {"minivllm-engine", "minivllm-engine-sender"} & thread_names())
