"""Everything mixed for a while: each greedy answer is the offline engine's, and nothing grows.

With ``--hypothesis-profile=nightly`` longer and more: 1,000 streams at once, and ten minutes of
everything.
"""

import asyncio
import gc
import json
import os
import random
import re
import threading
import time
from pathlib import Path

import httpx
import pytest
from helpers import AT_NIGHT, examples
from http_recordings import events_of, together
from http_server import serving

from minivllm import LLM, BeamSearchParams, SamplingParams
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.request_state import RequestState
from minivllm.request import Request, Sequence

pytestmark = pytest.mark.slow
PER_REQUEST = (RequestOutputCollector, RequestState, Request, Sequence)
PROMPTS = ["The capital of France is", "Hello, my name is", "naïve café — 世界 🙂", "The age of"]


@pytest.fixture(scope="module")
def server():
    # All blocks are soon touched; a reader may watch.
    with serving("--glass", "--num-gpu-blocks-override", "200") as running:
        yield running


def resident():
    """Bytes of memory that this process holds now, when what is not needed is gone."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def everything_is_free(server):
    assert server.idle(1.0), server.engine.request_ids
    scheduler = server.engine.engine_core.scheduler
    pool = scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    scheduler.check_integrity()


def post(body, path="/v1/completions"):
    """A request as it goes over the wire."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def test_many_streams_at_once_lose_nothing(server):
    """Thrice: what a round has left open, the next one would add to."""
    count, memory = max(100, examples(100).max_examples), []

    def num_left():
        gc.collect()
        return sum(type(one) in PER_REQUEST for one in gc.get_objects())

    async def one(number):
        body = {"prompt": PROMPTS[number % 4], "max_tokens": 5 + number % 7, "temperature": 0,
                "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(body))
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 200"), answer
        events = "".join(line for line in answer.split("\r\n") if line.startswith("data: "))
        return together(events_of(events))["usage"]["completion_tokens"]

    async def main():
        return await asyncio.gather(*(one(i) for i in range(count)))

    before = num_left()  # other tests of this process may hold theirs
    for _ in range(3):
        assert asyncio.run(main()) == [5 + i % 7 for i in range(count)]
        everything_is_free(server)
        memory.append(resident())
        assert num_left() - before < count // 2  # the last step's may still be there, no more
    assert memory[2] - memory[1] < 10 * 2**20, memory


def test_people_who_leave_at_random_points(server):
    """In the middle of asking, before the first token, after some, or after the last."""
    rng, count = random.Random(1), examples(200).max_examples
    left = dict.fromkeys(("asking", "waiting", "reading", "served"), 0)

    async def one(number, limit):
        where = rng.choice([*left])
        body = {"prompt": PROMPTS[number % 4], "max_tokens": 3 if where == "served" else 300,
                "ignore_eos": True, "n": 1 + number % 2, "temperature": 1,
                "stream": where == "reading" or number % 3 > 0}  # fmt: skip
        request, data, most = post(body), b"", rng.randrange(1, 30)
        if where == "asking":
            request = request[: rng.randrange(len(request))]
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            if where in ("asking", "waiting"):
                await asyncio.sleep(rng.random() * 0.05)
            else:
                while part := await reader.read(4096):
                    data += part
                    if where == "reading" and data.count(b"data: ") >= most:
                        break
            writer.transport.abort()
        left[where] += 1

    async def main():
        limit = asyncio.Semaphore(50)
        await asyncio.gather(*(one(i, limit) for i in range(count)))

    asyncio.run(main())
    everything_is_free(server)
    assert sum(left.values()) == count
    assert min(left.values()) > count / 10, left


def offline():
    """Answers of the offline engine to the prompts, and to the same with a beam search."""
    llm = LLM(max_model_len=512, block_size=32, max_num_seqs=32, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=24)
    texts = [o.outputs[0].text for o in llm.generate(PROMPTS, params, use_tqdm=False)]
    params = BeamSearchParams(beam_width=2, max_tokens=8)
    params._ends_at_own_eos = True  # as vLLM's server does
    found = llm.beam_search(PROMPTS, params)
    return texts, [output.sequences[0].tokens for output in found]


def test_a_soak_of_everything(server):
    texts, beams = offline()
    seconds, rng = 600 if AT_NIGHT else 8, random.Random(2)
    began = time.monotonic()
    names = ("whole", "stream", "searched", "structured", "drawn", "refused", "left", "watched",
             "asked")  # fmt: skip
    counts = dict.fromkeys(names, 0)

    async def whole(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 24, "temperature": 0}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == texts[i]

    async def stream(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 24, "temperature": 0, "stream": True}
        answer = await client.post("/v1/completions", json=body)
        assert together(events_of(answer.text))["choices"]["0"]["text"] == texts[i]

    async def searched(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 8, "temperature": 0, "n": 2,
                "use_beam_search": True, "return_token_ids": True,
                "include_stop_str_in_output": True}  # fmt: skip
        answer = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        assert answer["prompt_token_ids"] + answer["token_ids"] == beams[i]

    async def structured(client, i):
        body = {"prompt": PROMPTS[i], "temperature": 0,
                "structured_outputs": {"regex": "[ab]{3}[0-9]{2}"}}  # fmt: skip
        answer = (await client.post("/v1/completions", json=body)).json()
        assert re.fullmatch("[ab]{3}[0-9]{2}", answer["choices"][0]["text"])

    async def drawn(client, i):
        body = {"messages": [{"role": "user", "content": PROMPTS[i]}], "n": 2, "logprobs": True,
                "top_logprobs": 3, "max_tokens": 9, "stream": bool(i % 2)}  # fmt: skip
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

    async def refused(client, i):
        body = ({"prompt": "x " * 5000}, {"prompt": "x", "model": "gpt-4"}, {"prompt": ""},
                {"prompt": [99999]})[i]  # fmt: skip
        assert (await client.post("/v1/completions", json=body)).status_code in (400, 404)

    async def left(client, i):
        body = {"prompt": PROMPTS[i], "max_tokens": 300, "stream": bool(i % 2), "n": 1 + i % 2}
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(body))
        await asyncio.sleep(rng.random() * 0.2)
        writer.transport.abort()

    async def watched(client, i):
        async with client.stream("GET", "/glass/events") as pictures:
            async for line in pictures.aiter_lines():
                assert json.loads(line.removeprefix("data: "))["numbers"]["usable"] == 199
                return

    async def asked(client, i):
        path = ("/health", "/metrics", "/v1/models", "/load")[i]
        assert (await client.get(path)).status_code == 200

    memory = []

    async def worker(client):
        while (now := time.monotonic() - began) < seconds or min(counts.values()) == 0:
            if now > seconds / 2 and not memory:
                memory.append(resident())
            kind = rng.choice((whole, stream, searched, structured, drawn, refused, left, watched,
                               asked))  # fmt: skip
            await kind(client, rng.randrange(4))
            counts[kind.__name__] += 1

    async def main():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await asyncio.gather(*(worker(client) for _ in range(12)))

    def now():
        """Threads, without those of the event loops' own small pools, and open files."""
        pools = ("asyncio_", "uvloop_")
        own = [t for t in threading.enumerate() if not t.name.startswith(pools)]
        return len(own), len(os.listdir("/proc/self/fd"))

    before = now()
    asyncio.run(main())
    everything_is_free(server)
    time.sleep(0.2)
    assert now()[0] <= before[0], threading.enumerate()
    assert now()[1] <= before[1] + 5
    assert resident() - memory[0] < 32 * 2**20, memory
    assert not server.engine.engine_core.trace.records
