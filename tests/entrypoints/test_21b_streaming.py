"""Streams on the wire: events are sent as outputs come; slow clients, errors, hang-ups."""

import asyncio
import json

import pytest

from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.entrypoints.openai.streaming.event_stream import SERVERS_SEND
from minivllm.entrypoints.openai.streaming.generation_response import (
    EngineRequest,
    GenerationResponse,
)
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import SamplingParams


class Engine:
    """A stream's part of an engine: queues, and those that it has given back."""

    def __init__(self):
        self.queues, self.released = {}, []

    async def add_request(self, request_id, prompt, params, **rest):
        if prompt is None:
            raise ValueError("a prompt must be a prompt")
        self.queues[request_id] = RequestOutputCollector(request_id, delta=True)
        return self.queues[request_id]

    def release(self, collector):
        collector.on_put = None
        self.released.append(collector.request_id)


class Chunks:
    """A chunk is a request's id and its new text; "!" cannot be shown."""

    def build(self, output):
        (choice,) = output.outputs
        if choice.text == "!":
            raise RuntimeError("it cannot be shown")
        return f"{output.request_id}:{choice.text};".encode()

    def finish(self):
        return b"end;"


class Client:
    """A connection: what has been sent, and whether the client can take more."""

    def __init__(self):
        self.sent, self.may_send, self.gone = [], asyncio.Event(), asyncio.Event()
        self.may_send.set()
        self.cut = self.busy = False

    async def send(self, message):
        assert not self.busy, "one message at a time"
        self.busy = True
        await self.may_send.wait()
        self.busy = False
        if self.cut:
            raise OSError("the line is cut")
        self.sent.append(message)

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent).decode()


def piece(request_id, text, finished=False):
    reason = "stop" if finished else None
    choice = CompletionOutput(0, text, [1], finish_reason=reason)
    return RequestOutput(request_id, None, [1], None, [choice], finished)


def request(request_id, prompt="x"):
    return EngineRequest(request_id, prompt, SamplingParams(), 0)


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def begin(*names):
    """A stream for these requests that has begun: its engine, its client and its task."""
    engine, client = Engine(), Client()
    requests = [request(name) for name in names]
    stream = GenerationResponse(engine, requests, Chunks())
    task = asyncio.ensure_future(stream({"type": "http"}, client.receive, client.send))
    await settle()
    return engine, client, task


def test_an_event_is_sent_before_the_next_output_is_handed_out():
    async def main():
        engine, client, task = await begin("a")
        for text in "xyz":
            engine.queues["a"].put(piece("a", text))
            assert client.body.endswith(f"a:{text};")  # and no turn of the loop was needed
        engine.queues["a"].put(piece("a", "", finished=True))
        await task
        assert client.body == "a:x;a:y;a:z;a:;end;data: [DONE]\n\n"
        assert not client.sent[-1]["more_body"]
        assert engine.released == ["a"]

    asyncio.run(main())


def test_outputs_wait_for_a_slow_client_and_are_joined():
    async def main():
        engine, client, task = await begin("a", "b")
        engine.queues["a"].put(piece("a", "1"))
        engine.queues["b"].put(piece("b", "1"))
        client.may_send.clear()
        for text in "234":
            engine.queues["a"].put(piece("a", text))
        engine.queues["b"].put(piece("b", "2", finished=True))
        await settle()
        assert client.body == "a:1;b:1;"
        client.may_send.set()
        await settle()
        assert client.body == "a:1;b:1;a:2;a:34;b:2;"
        engine.queues["a"].put(piece("a", "5", finished=True))
        await task
        assert client.body == "a:1;b:1;a:2;a:34;b:2;a:5;end;data: [DONE]\n\n"
        assert engine.released == ["a", "b"]

    asyncio.run(main())


def test_the_last_output_may_wait_for_a_slow_client():
    async def main():
        engine, client, task = await begin("a")
        client.may_send.clear()
        engine.queues["a"].put(piece("a", "1", finished=True))
        await settle()
        assert not task.done()
        client.may_send.set()
        await task
        assert client.body == "a:1;end;data: [DONE]\n\n"

    asyncio.run(main())


@pytest.mark.parametrize("slow", [False, True])
def test_who_leaves_ends_it_at_once(slow):
    async def main():
        engine, client, task = await begin("a", "b")
        if slow:
            client.may_send.clear()
        engine.queues["a"].put(piece("a", "1"))
        client.gone.set()
        await task
        assert engine.released == ["a", "b"]
        client.may_send.set()
        engine.queues["b"].put(piece("b", "1"))
        await settle()
        assert client.body == ("" if slow else "a:1;")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [piece("a", "!"), ValueError("the engine says no")])
def test_an_error_ends_its_own_stream_alone(wrong):
    async def main():
        engine, client, task = await begin("a", "b")
        other, others, another = await begin("c")
        engine.queues["b"].put(piece("b", "1"))
        engine.queues["a"].put(wrong)  # nothing is raised where outputs are handed out
        other.queues["c"].put(piece("c", "1", finished=True))
        await task
        await another
        begun, error, done = client.body.split("data: ")
        assert begun == "b:1;"
        assert json.loads(error)["error"]["message"]
        assert done == "[DONE]\n\n"
        assert engine.released == ["a", "b"]
        assert others.body == "c:1;end;data: [DONE]\n\n"

    asyncio.run(main())


def test_after_an_error_nothing_comes_but_the_error():
    """Also of what is handed out in the same turn of the loop, and while a client is slow."""

    async def main():
        engine, client, task = await begin("a", "b")
        for text in ("x", "!", "z"):
            engine.queues["a"].put(piece("a", text))
        engine.queues["a"].put(piece("a", "", finished=True))
        await task
        assert client.body.startswith("a:x;data: {")

        engine, client, task = await begin("a", "b")
        client.may_send.clear()
        engine.queues["b"].put(piece("b", "1"))
        engine.queues["a"].put(ValueError("no"))
        engine.queues["b"].put(piece("b", "2"))
        client.may_send.set()
        await settle()
        client.may_send.clear()  # would a second event be on its way now?
        client.may_send.set()
        await task
        assert client.body.startswith("b:1;data: {")

    asyncio.run(main())


def test_a_prompt_that_is_refused_is_an_event_and_the_others_end():
    async def main():
        engine, client = Engine(), Client()
        requests = [
            request("a"),
            request("b", None),
        ]
        stream = GenerationResponse(engine, requests, Chunks())
        await stream({"type": "http"}, client.receive, client.send)
        assert client.sent[0]["status"] == 200
        assert "a prompt must be a prompt" in client.body
        assert client.body.endswith("data: [DONE]\n\n")
        assert engine.released == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize("slow", [False, True])
def test_a_send_that_fails_ends_the_answer(slow):
    async def main():
        engine, client, task = await begin("a")
        if slow:
            client.may_send.clear()
            engine.queues["a"].put(piece("a", "1"))
            await settle()
        client.cut = True
        engine.queues["a"].put(piece("a", "2"))  # nothing is raised here
        client.may_send.set()
        with pytest.raises(OSError, match="the line is cut"):
            await task
        assert engine.released == ["a"]

    asyncio.run(main())


def test_layers_see_how_an_answer_begins_and_the_server_gets_its_events():
    async def main():
        engine, client, layer = Engine(), Client(), Client()
        stream = GenerationResponse(engine, [request("a")], Chunks())
        scope = {"type": "http", SERVERS_SEND: client.send}
        task = asyncio.ensure_future(stream(scope, client.receive, layer.send))
        await settle()
        engine.queues["a"].put(piece("a", "1", finished=True))
        await task
        assert [message["type"] for message in layer.sent] == ["http.response.start"]
        assert client.body == "a:1;end;data: [DONE]\n\n"

    asyncio.run(main())
