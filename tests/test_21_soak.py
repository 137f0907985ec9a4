"""Everything mixed for a while: each greedy answer is the offline engine's, and nothing grows.

Some seconds here; with ``--hypothesis-profile=nightly`` ten times as long and as many.
"""

import asyncio
import gc
import os
import random
import threading
import time

import httpx
import pytest
from helpers import examples
from http_recordings import events_of, together
from http_server import serving

from minivllm import LLM, SamplingParams
from minivllm.engine.async_llm import RequestOutputCollector
from minivllm.engine.request_state import RequestState
from minivllm.request import Request, Sequence

pytestmark = pytest.mark.slow
PER_REQUEST = (RequestOutputCollector, RequestState, Request, Sequence)
PROMPTS = ["The capital of France is", "Hello, my name is", "naïve café — 世界 🙂", "The age of"]


@pytest.fixture(scope="module")
def server():
    with serving("--num-gpu-blocks-override", "200") as running:  # all of them soon touched
        yield running


def everything_is_free(server):
    assert server.idle(1.0), server.engine.request_ids
    scheduler = server.engine.engine.scheduler
    pool = scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    scheduler.check_integrity()


def test_many_streams_at_once_lose_nothing(server):
    """Twice: what the first round has left open, the second would add to."""
    count = examples(100).max_examples

    async def one(client, number):
        body = {"prompt": PROMPTS[number % 4], "max_tokens": 5 + number % 7, "temperature": 0,
                "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        answer = await client.post("/v1/completions", json=body)
        return together(events_of(answer.text))["usage"]["completion_tokens"]

    async def main():
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            return await asyncio.gather(*(one(client, i) for i in range(count)))

    for _ in range(2):
        assert asyncio.run(main()) == [5 + i % 7 for i in range(count)]
        everything_is_free(server)
        gc.collect()
        left = [type(one) for one in gc.get_objects() if type(one) in PER_REQUEST]
        assert len(left) < count // 2, left  # the last step's may still be there, no more


def test_people_who_leave_at_random_points(server):
    rng, count = random.Random(1), examples(20).max_examples

    async def one(number, limit):
        body = {"prompt": PROMPTS[number % 4], "max_tokens": 300, "ignore_eos": True,
                "stream": number % 3 > 0, "n": 1 + number % 2, "temperature": 1}  # fmt: skip
        async with limit, httpx.AsyncClient(base_url=server.url) as client:
            request = client.post("/v1/completions", json=body)
            await asyncio.wait([asyncio.ensure_future(request)], timeout=rng.random() * 0.4)

    async def main():
        limit = asyncio.Semaphore(50)
        await asyncio.gather(*(one(i, limit) for i in range(count)))

    asyncio.run(main())
    everything_is_free(server)


def test_a_soak_of_everything(server):
    llm = LLM(max_model_len=512, block_size=32, max_num_seqs=32, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=24)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    del llm
    seconds, rng = examples(6).max_examples, random.Random(2)
    until = time.monotonic() + seconds
    counts = dict.fromkeys(("whole", "stream", "drawn", "refused", "left"), 0)

    async def whole(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 24, "temperature": 0}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == texts[i]

    async def stream(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 24, "temperature": 0, "stream": True}
        answer = await client.post("/v1/completions", json=body)
        assert together(events_of(answer.text))["choices"]["0"]["text"] == texts[i]

    async def drawn(client, i):
        body = {"messages": [{"role": "user", "content": PROMPTS[i]}], "n": 2, "logprobs": True,
                "top_logprobs": 3, "max_tokens": 9, "stream": bool(i % 2)}  # fmt: skip
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

    async def refused(client, i):
        body = ({"prompt": "x " * 5000}, {"prompt": "x", "model": "gpt-4"}, {"prompt": ""},
                {"prompt": [99999]})[i]  # fmt: skip
        assert (await client.post("/v1/completions", json=body)).status_code in (400, 404)

    async def left(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 300, "stream": bool(i % 2)}
        async with httpx.AsyncClient(base_url=server.url) as short:
            request = asyncio.ensure_future(short.post("/v1/completions", json=body))
            await asyncio.wait([request], timeout=rng.random() * 0.2)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def worker(client):
        while time.monotonic() < until:
            kind = rng.choice((whole, stream, drawn, refused, left))
            await kind(client, rng.randrange(4))
            counts[kind.__name__] += 1

    async def main():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await asyncio.gather(*(worker(client) for _ in range(12)))

    def now():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = now()
    asyncio.run(main())
    everything_is_free(server)
    time.sleep(0.2)
    assert now()[0] <= before[0] + 2
    assert now()[1] <= before[1] + 5
    assert min(counts.values()) > 0, counts
