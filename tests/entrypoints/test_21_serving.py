"""The server as a whole: streams, bad input, people who leave, signals, flags, death."""

import asyncio
import dataclasses
import gc
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from http_recordings import events_of, metrics_of, together
from http_server import USUAL, serving

from minivllm import LLM, AsyncLLM, BeamSearchParams, SamplingParams, embedded_model_path
from minivllm.engine.arg_utils import AsyncEngineArgs
from minivllm.entrypoints.openai.api_server import Server, routes_of, run_server
from minivllm.entrypoints.openai.background import BackgroundServer
from minivllm.entrypoints.openai.cli_args import engine_args, make_parser, parse_args
from minivllm.entrypoints.openai.middleware import AuthenticationMiddleware
from minivllm.entrypoints.openai.response_format import StructuredOutputs
from minivllm.sampling_params import StructuredOutputsParams
from minivllm.scheduling.policies import SchedulingPolicy

TABLE = (
    "Answer questions about this table.\n\n| ID | Name | Age |\n|--|--|--|\n| 1 | Ada Hart | 36 |\n"
)
MESSAGES = [
    {"role": "system", "content": TABLE},
    {"role": "user", "content": "How old is Ada Hart?"},
]
PROMPTS = [
    "The capital of France is",
    "Hello, my name is",
    "naïve café — 世界 🙂",
    "<|im_start|>user\n",
]


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def completion(client, **body):
    answer = client.post("/v1/completions", json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- streams are the whole answers, in pieces --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    "more",
    [{}, {"ignore_eos": True}, {"stop": ["a", "ell"]}, {"return_token_ids": True}, {"echo": True},
     {"allowed_token_ids": [163, 119, 247, 166, 246, 237], "ignore_eos": True},
     {"logprobs": 2}, {"n": 2, "temperature": 1, "seed": 5}],
)  # fmt: skip
def test_a_stream_joined_is_the_whole_answer(client, kind, more):
    more = dict(more)
    if "logprobs" in more and kind == "chat/completions":
        more = {"logprobs": True, "top_logprobs": 2}
    for prompt in PROMPTS:
        what = {"prompt": prompt}
        if kind == "chat/completions":
            what = {"messages": [{"role": "user", "content": prompt}]}
        body = {"temperature": 0, "max_tokens": 12, "seed": 3, **what, **more}
        whole = client.post(f"/v1/{kind}", json=body).json()
        text = client.post(f"/v1/{kind}", json=body | {"stream": True}).text
        joined = together(events_of(text))["choices"]
        assert len(joined) == len(whole["choices"]) == more.get("n", 1)
        for choice in whole["choices"]:
            mine = joined[str(choice["index"])]
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            assert mine["text"] == said
            assert mine["finish"] == [choice["finish_reason"], choice["stop_reason"]]
            assert mine["ids"] == (choice["token_ids"] or [])
            assert mine["logprobs"] == (choice["logprobs"] or {})


@pytest.mark.slow
def test_a_slow_reader_gets_the_same_text(server):
    body = {"prompt": PROMPTS[1], "max_tokens": 200, "temperature": 0, "stream": True,
            "ignore_eos": True}  # fmt: skip
    with server.client() as client:
        quick = together(events_of(client.post("/v1/completions", json=body).text))
        with client.stream("POST", "/v1/completions", json=body) as answer:
            pieces = []
            for piece in answer.iter_text(chunk_size=2000):
                pieces.append(piece)
                time.sleep(0.02)
    assert together(events_of("".join(pieces)))["choices"] == quick["choices"]


def test_answers_are_those_of_the_offline_engine(client):
    llm = LLM(max_model_len=512, block_size=32, max_num_seqs=32, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=20)
    want = [output.outputs[0].text for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    got = completion(client, prompt=PROMPTS, max_tokens=20)["choices"]
    assert [choice["text"] for choice in got] == want
    chat = client.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "temperature": 0, "max_tokens": 20}
    ).json()
    (output,) = llm.chat(MESSAGES, params, use_tqdm=False)
    assert chat["choices"][0]["message"]["content"] == output.outputs[0].text
    assert "36" in output.outputs[0].text


def test_beams_over_http(client):
    llm = LLM(max_model_len=512, block_size=32, max_num_seqs=32, max_num_batched_tokens=512)
    params = BeamSearchParams(3, 8)
    params._ends_at_own_eos = True  # as vLLM's server does
    (want,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    got = completion(client, prompt=PROMPTS[0], max_tokens=8, use_beam_search=True, n=3)
    assert [choice["text"] for choice in got["choices"]] == [c.text for c in want.outputs]
    assert got["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in want.outputs)


# -- bad input ---------------------------------------------------------------------------------

BAD = [
    ({"prompt": "x", "n": 10**9, "temperature": 1}, 400, None),
    ({"prompt": "x", "max_tokens": 10**12}, 400, "max_tokens"),
    ({"prompt": "x", "top_p": 7}, 400, "top_p"),
    ({"prompt": "x", "seed": 2**70}, 400, "body.seed"),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"prompt": "x", "logit_bias": {"99999": 1}}, 400, "logit_bias"),
    ({"prompt": "x", "truncate_prompt_tokens": 10**6}, 400, "truncate_prompt_tokens"),
    ({"prompt": "x" * 100_000}, 400, "input_text"),
    ({"prompt": "the " * 1000}, 400, "input_tokens"),
    ({"prompt": [[1], []]}, 400, None),
    ({"prompt": ["x", ""]}, 400, None),
    ({"prompt": [-1]}, 400, "body.prompt"),
    ({"prompt": "\ud800"}, 400, None),
    ({"prompt": "x", "model": "\ud800"}, 404, "model"),
    ({"prompt": "x", "bad_words": ["\ud800"]}, 400, None),
    ({"prompt": "x", "min_tokens": 9, "max_tokens": 3}, 400, None),
    ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    ({"prompt": "x", "structured_outputs": {"choice": []}}, 400, None),
    ({"prompt": "x", "response_format": {"type": "json_schema"}}, 400, "response_format"),
    ({"prompt": "x", "use_beam_search": True, "n": 10**6}, 400, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "param"), BAD, ids=lambda v: str(v)[:50])
def test_bad_values_get_an_error_with_their_name(server, client, body, status, param):
    answer = client.post("/v1/completions", content=json.dumps(body),
                         headers={"content-type": "application/json"})  # fmt: skip
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status
    if param is not None:
        assert error["param"] == param
    for word in ("Traceback", 'File "', str(Path(__file__).parents[2])):
        assert word not in answer.text
    assert server.idle()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json": {"minimum": math.nan}}, "json must be a schema of numbers that are finite"),
        ({"json": {"enum": [["\ud800"]]}}, "json must be a schema of strings without lone"),
        ({"json": '{"const": "\ud800"}'}, "json must be a JSON schema"),
        ({"choice": ["a", "\ud800"]}, "choice must be a list of at least one string, without lone"),
        ({"json_object": True, "whitespace_pattern": "("}, "whitespace_pattern must be a regular"),
    ],
)
def test_a_bad_form_is_named(client, form, words):
    body = json.dumps({"prompt": "x", "structured_outputs": form})
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe{}", b'{"prompt": "\xff"}', b"[" * 100_000, b'{"a":' * 50_000,
     b'{"prompt": "' + b"a b " * 2_500_000 + b'"}', b"null", b'"x"', b'{"prompt": NaN}',
     b'{"prompt": %s}' % (b"9" * 5000), b'{"seed": [{"a": -%s}]}' % (b"1" * 5000), b"9" * 5000],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_bad_bodies_are_no_fault_of_ours(client, path, body):
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == 400
    assert error["type"] in ("Bad Request", "BadRequestError")
    assert error["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"prompt": %s}' % (b"9" * 5000), 400, "4,300 digits"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"prompt": "\xff"}', 400, "not UTF-8"),
        (None, 413, "33554432 bytes"),  # in parts, without saying how many
    ],
    ids=["digits", "nesting", "encoding", "length"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_a_body_that_cannot_be_read_says_why(client, path, body, status, words):
    content = body or iter([b" " * 2**20] * 33)
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert (error["code"], error["type"]) == (status, "Bad Request")
    assert answer.json().keys() == {"error"}


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("POST", 404)])
def test_a_path_or_method_that_is_not_there_has_starlettes_body(client, method, status):
    path = "/v1/completions" if status == 405 else "/v1/nothing"
    answer = client.request(method, path, content=b"9" * 5000)
    assert (answer.status_code, answer.json().keys()) == (status, {"detail"})


def test_a_body_beyond_all_bounds(client):
    huge = httpx.Headers({"content-type": "application/json", "content-length": str(10**12)})
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in huge.items())
        connection.sendall(f"POST /tokenize HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
        assert b" 413 " in connection.recv(1000)


def test_a_half_sent_body_holds_nobody_up(server, client):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b'content-length: 100\r\n\r\n{"prompt": "x"')
        assert completion(client, prompt="x", max_tokens=1)["choices"]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("n", [10**6, 10**12, 10**20])
@pytest.mark.parametrize("stream", [False, True])
def test_nobody_makes_room_for_beams_before_they_are_allowed(client, n, stream):
    body = {"messages": MESSAGES, "use_beam_search": True, "n": n, "stream": stream}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == (200 if stream else 400)
    assert "beam_width must be" in answer.text


def test_fields_that_no_request_has_are_named_in_the_log(client, capsys):
    completion(client, prompt="x", max_tokens=1, guided_json={}, best_of=1)
    completion(client, prompt="x", max_tokens=1)
    lines = [one for one in capsys.readouterr().out.splitlines() if "are ignored" in one]
    assert [line.partition("ignored: ")[2] for line in lines] == ["'best_of, guided_json'"]


def test_invocations_are_completions_or_chats(client):
    common = {"max_tokens": 6, "temperature": 0}
    for path, body in (
        ("completions", {"prompt": "x"}),
        ("chat/completions", {"messages": MESSAGES}),
    ):
        want = client.post(f"/v1/{path}", json=body | common).json()
        got = client.post("/invocations", json=body | common).json()
        assert got["object"] == want["object"]
        assert got["choices"] == want["choices"]
        text = client.post("/invocations", json=body | common | {"stream": True}).text
        assert text.endswith("data: [DONE]\n\n")
    for body, param in (({"prompt": 5}, "prompt"), ({"messages": 5}, "messages"), ({}, "prompt"),
                        ({"prompt": "x", "top_p": 7}, "top_p")):  # fmt: skip
        answer = client.post("/invocations", json=body)
        assert answer.status_code == 400
        assert param in answer.json()["error"]["message"]
    assert client.post("/invocations", json=[1]).status_code == 400


@pytest.mark.parametrize("root_path", ["", "/v", "/proxy"])
def test_no_root_path_opens_a_guarded_path(root_path):
    async def ask(path):
        said, headers = [], []
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers}

        async def send(message):
            said.append(message)

        async def app(scope, receive, send):
            said.append({"status": 200})

        await AuthenticationMiddleware(app, ["key"], root_path)(scope, None, send)
        return said[0]["status"]

    assert asyncio.run(ask("/v1/models")) == 401
    assert asyncio.run(ask(root_path + "/v1/models")) == 401
    assert asyncio.run(ask(root_path + "/invocations")) == 401
    assert asyncio.run(ask("/health")) == 200


def test_messages_that_are_none(client):
    for messages in ([{}], [{"role": 3}], [{"role": "user", "content": None}],
                     [{"role": "user", "content": 5}],
                     [{"role": "assistant", "tool_calls": 3}],
                     [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
                     [{"role": "user", "content": [{"type": "image_url"}]}]):  # fmt: skip
        answer = client.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400, (messages, answer.text)


# -- people who leave ----------------------------------------------------------------------------


@pytest.mark.slow
def test_who_hangs_up_while_waiting_is_noticed():
    with serving("--max-num-seqs", "1") as server, server.client() as client:
        step = server.engine.engine_core.step
        # 500 steps take ten seconds on the fastest machine, too: the others wait all the time.
        server.engine.engine_core.step = lambda: (time.sleep(0.02), step())[1]
        long = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=long) as answer:
            lines = (line for line in answer.iter_lines() if line)
            for _ in range(3):  # a prefill and two decodes: what they compile is compiled
                next(lines)
            for stream in (True, False):
                body = {"prompt": "y", "stream": stream}
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.2)
            until = time.monotonic() + 1
            while len(server.engine.request_ids) > 1:
                assert time.monotonic() < until
                time.sleep(0.005)  # the server is in this process, and wants the interpreter, too
            assert len(server.engine.request_ids) == 1  # the long one has not ended meanwhile
        assert server.idle(1.0)


# -- limits, keys, ends ---------------------------------------------------------------------------


def test_a_stopped_server_leaves_no_engine_behind():
    """Frameworks keep functions of endpoints for good; none of ours may hold the KV cache."""
    with BackgroundServer("--max-model-len", "64") as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        engine = weakref.ref(server.engine)
    del server
    gc.collect()
    assert engine() is None


def test_a_server_of_ones_own_ends_with_its_block():
    before = set(threading.enumerate())
    with BackgroundServer("--max-model-len", "64") as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"] == 64
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert names >= {"minivllm-server", "minivllm-engine"}
    server.stop()  # again does nothing
    assert not {t for t in set(threading.enumerate()) - before if t.name.startswith("minivllm")}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="cannot listen"):
            BackgroundServer("--port", str(taken.getsockname()[1]))


@pytest.mark.slow
def test_it_runs_in_uvicorns_event_loop():
    uvloop = pytest.importorskip("uvloop", reason="Windows has none")
    with serving() as server, server.client() as client:
        completion(client, prompt="x", max_tokens=1)
        assert isinstance(server.engine.output_handler._loop, uvloop.Loop)


@pytest.mark.slow
def test_what_is_there_for_good_is_not_searched_for_garbage(monkeypatch):
    frozen = []

    def run(self, sockets):
        frozen.append(gc.get_freeze_count())
        self.engine.shutdown()

    monkeypatch.setattr(Server, "run", run)
    try:
        assert run_server(parse_args([*USUAL, "--port", "0"])) == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > 100_000, "torch and transformers alone are more"


@pytest.mark.slow
def test_offline_too_but_an_engine_that_ends_leaves_its_memory():
    code = """
import gc, weakref
from minivllm import LLM
engines = [LLM(), LLM()]
assert gc.get_freeze_count() > 100_000
workers = [weakref.ref(e.llm_engine.engine_core.executor.worker) for e in engines]
del engines
gc.collect()
print([worker() for worker in workers])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1:] == ["[None, None]"], run.stderr


def test_compiled_loops_leave_the_interpreter_lock():
    """So that /health is answered while they run, as it is during torch's operations."""
    fused = pytest.importorskip("minivllm.cpu.fused", reason="there is no numba")
    kernels = [k for k in vars(fused).values() if hasattr(k, "targetoptions")]
    assert kernels
    assert all(kernel.targetoptions["nogil"] for kernel in kernels)


def test_a_full_queue_answers_503():
    """The flag bounds what runs and waits, samples and prompts each counted; all at once, too."""
    words = ("--max-num-seqs", "2", "--max-num-queued-reqs", "4")
    with serving(*words) as server, server.client() as client:
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body | {"prompt": ["x"] * 3}):
            refused = [
                client.post("/v1/completions", json={"prompt": ["x", "y"]}),
                client.post("/v1/completions", json={"prompt": "x", "n": 2}),
                client.post("/v1/chat/completions", json={"messages": MESSAGES, "n": 2}),
            ]
            assert completion(client, prompt="x", max_tokens=1)  # the fourth
        for answer in refused:
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "Service Unavailable"
        assert server.idle()
        with ThreadPoolExecutor(12) as pool:
            answers = [
                pool.submit(client.post, "/v1/completions", json=body | {"max_tokens": 200})
                for _ in range(12)
            ]
        codes = [answer.result().status_code for answer in answers]
        assert codes.count(200) >= 4
        assert codes.count(503) == 12 - codes.count(200) > 0
        name = 'vllm:admission_rejections_total{model_name="minivllm",reason="max_num_queued_reqs"}'
        assert f"{name} {3.0 + codes.count(503)}" in client.get("/metrics").text
        assert client.post("/v1/completions", json={"prompt": 5}).status_code == 400
        assert client.post("/v1/completions", json={"prompt": [-1]}).status_code == 400
        until = time.monotonic() + 5
        while server.app.state.served.num_admitted and time.monotonic() < until:
            time.sleep(0.01)
        assert server.app.state.served.num_admitted == 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_callers_may_choose_an_id_twice(client, stream):
    """At the same time; the second prompt is long enough to be encoded beside the event loop."""
    body = {"prompt": ["a", "word " * 1000], "max_tokens": 2, "stream": stream, "request_id": "x",
            "truncate_prompt_tokens": 20}  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(4)]
    for answer in (one.result() for one in asked):
        assert answer.status_code == 200, answer.text
        assert '"cmpl-x"' in answer.text
        assert "error" not in answer.text


@pytest.mark.slow
def test_a_retry_under_the_same_id_gets_its_own_answer(client):
    body = {"temperature": 0, "ignore_eos": True, "request_id": "retry"}
    for _ in range(5):
        with client.stream(
            "POST", "/v1/completions", json=body | {"prompt": "gone", "stream": True}
        ) as answer:
            next(answer.iter_lines())
        again = completion(client, **body, prompt="here", max_tokens=8)
        assert again["choices"][0]["finish_reason"] == "length"
        assert again["usage"]["completion_tokens"] == 8


class AdmitsNobody(SchedulingPolicy):
    def may_admit(self, running):
        return False


@pytest.mark.slow
def test_a_policy_that_admits_nobody_is_no_fault_of_the_client():
    engine = AsyncLLM(AsyncEngineArgs(max_model_len=64, scheduling_policy=AdmitsNobody()))
    with serving(engine=engine) as server, server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "Hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, 500)
        asked = {"prompt": "Hi", "stream": True}
        (error, done) = client.post("/v1/completions", json=asked).text.split("\n\n")[:2]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
        assert done == "data: [DONE]"
        assert client.get("/health").status_code == 200
        assert server.idle()


@pytest.mark.slow
def test_a_dead_engine_is_said_so(monkeypatch):
    with serving() as server, server.client() as client:
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)

            def fail():
                raise RuntimeError("secret of the engine room")

            monkeypatch.setattr(server.engine.engine_core, "step", fail)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2][6:])["error"]["type"] == "InternalServerError"
        assert rest[-1] == "data: [DONE]"
        assert "secret" not in "".join(rest)
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 500
        assert server.server.status == 1


def test_every_route_has_a_name_for_the_log(server):
    """Those of routers within routers, too, whatever FastAPI makes of an included one."""
    names = [route.path for route in routes_of(server.app)]
    assert all(isinstance(name, str) and name.startswith("/") for name in names)
    assert {"/v1/chat/completions", "/v1/models", "/tokenize", "/health", "/metrics"} <= set(names)


def start(*words, **environment):
    """The command, as a process that is ready. Returns it and its port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "minivllm.entrypoints.openai.api_server", *USUAL, *words]
    command += ["--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=os.environ | environment)  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health")
            return process, port
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(process.communicate()[0])


@pytest.mark.slow
@pytest.mark.parametrize(("timeout", "reason"), [("0", "abort"), ("20", "length")])
def test_a_signal_ends_it_cleanly(timeout, reason):
    process, port = start("--shutdown-timeout", timeout)
    try:
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == reason
        assert process.wait(30) == 0
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))  # it is free at once
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_unix_socket_is_there_while_its_server_is(tmp_path):
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "minivllm.entrypoints.openai.api_server", *USUAL]
    process = subprocess.Popen([*command, "--uds", str(path)])
    try:
        until = time.monotonic() + 60
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            while True:
                try:
                    assert client.get("http://x/health").status_code == 200
                    break
                except httpx.TransportError:
                    assert time.monotonic() < until
                    assert process.poll() is None
                    time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def test_requests_are_logged_where_asked_for(capsys):
    words = ("--enable-log-requests", "--max-log-len", "5")
    with serving(*words) as server, server.client() as client:
        completion(client, prompt="The capital", max_tokens=3)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "Received request" in one]
    assert "prompt: 'The c', params: SamplingParams(temperature=0.0, max_tokens=3" in line


# -- flags -------------------------------------------------------------------------------------


def test_every_engine_argument_is_a_flag_in_both_spellings():
    usual = engine_args(parse_args([]))
    assert usual == AsyncEngineArgs()
    one = parse_args(["--max_num_seqs", "7", "--no_enable_prefix_caching", "--block-size=8"])
    two = parse_args(["--max-num-seqs=7", "--no-enable-prefix-caching", "--block_size", "8"])
    assert engine_args(one) == engine_args(two)
    assert engine_args(one).max_num_seqs == 7
    assert not engine_args(one).enable_prefix_caching
    assert engine_args(parse_args(["--max-model-len", "1k"])).max_model_len == 1000


def test_a_file_of_flags_comes_before_the_typed_ones(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        'host: "127.0.0.1"\nport: 6379\nuvicorn-log-level: "info"\nmax_num_seqs: 5\n'
        "enforce-eager: true\nenable-prefix-caching: false\napi-key: [one, two]\n"
        "override-generation-config: {temperature: 0}\nserved-model-name: small\n"
        'allowed-origins: ["http://here"]\n'
    )
    args = parse_args(["--config", str(file), "--port", "7000"])
    assert (args.host, args.port, args.max_num_seqs) == ("127.0.0.1", 7000, 5)
    assert (args.enforce_eager, args.enable_prefix_caching) == (True, False)
    assert (args.api_key, args.served_model_name) == (["one", "two"], ["small"])
    assert args.override_generation_config == {"temperature": 0}
    assert args.allowed_origins == ["http://here"]
    assert parse_args(["some/model", "--config", str(file)]).model == "some/model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "x.json"], "must be a .yaml or .yml file"),
        (["--lora-modules", "{a=b,"], "Invalid JSON format for --lora-modules: {a=b,"),
        (["--lora-modules", '{"name": "a"}'], "Invalid fields for --lora-modules: {"),
        (["--lora-modules", '{"name": 5, "path": "b"}'], "name must be a string, got 5"),
        (["--lora-modules", "[[1]]"], "Invalid fields for --lora-modules: [[1]] - "),
        (["--tool_parser_plugin", "x.py"], "is not there: no code from elsewhere is run"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--disable_log_requests"], "logged only with --enable-log-requests"),
        (["--speculative-mode=[ngram]"], "drafts of n-grams are --speculative-model [ngram]"),
        (["--nnodes", "2"], "--nnodes is not there: several machines are Ray's business"),
        (["--allowed-origins", "5"], "--allowed-origins must be a list of strings as JSON, got 5"),
        (["--default-chat-template-kwargs", "[]"], "must be a JSON object, got []"),
        (["--port", "many"], "invalid int value: 'many'"),
        (["--port", "99999"], "--port must be from 0 to 65535, got 99999"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout must be 0 or more, got -1.0"),
        (["--override-generation-config", "[1]"], "must be a JSON object, got [1]"),
        (["--config", "a.yaml", "--config=b.yaml"], "--config can be given once"),
    ],
)
def test_flags_that_are_not_there_say_why(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        parse_args(words)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [1, 2]", "argument --port: invalid int value: '[1, 2]'"),
        (
            "enable-prefix-caching: maybe",
            "enable-prefix-caching must be true or false, got 'maybe'",
        ),
    ],
)
def test_a_file_of_flags_is_checked(tmp_path, capsys, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        parse_args(["--config", str(file)])
    assert message in " ".join(capsys.readouterr().err.split())


def test_what_the_engine_does_not_do_is_one_sentence(capsys):
    from minivllm.entrypoints.openai.api_server import main

    assert main(["--cpu-offload-gb", "4", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "cpu_offload_gb must be 0" in error
    assert "Traceback" not in error
    assert main(["/no/such/model", "--port", "0"]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_help_has_groups():
    text = make_parser().format_help()
    for word in ("socket:", "guard:", "answers:", "log:", "engine:", "--max-num-seqs", "--host"):
        assert word in text


# -- what it measures ----------------------------------------------------------------------------


@pytest.mark.slow
def test_metrics_are_what_clients_counted():
    with serving() as server, server.client() as client:
        answers = [
            completion(client, prompt=PROMPTS[i % 4], max_tokens=3 + i, ignore_eos=True)
            for i in range(6)
        ]
        assert client.post("/v1/completions", json={"prompt": ""}).status_code == 400
        samples = metrics_of(client.get("/metrics").text)[1]
        assert client.get("/metrics/").status_code == 200
    usage = [answer["usage"] for answer in answers]
    generated = sum(one["completion_tokens"] for one in usage)
    assert samples["vllm:prompt_tokens_total"] == sum(one["prompt_tokens"] for one in usage)
    assert samples["vllm:generation_tokens_total"] == generated
    assert samples["vllm:inter_token_latency_seconds_count"] == generated - 6
    assert samples['vllm:request_success_total{finished_reason="length"}'] == 6
    parts = ("queue", "prefill", "decode", "inference")
    for name in (
        "time_to_first_token",
        "e2e_request_latency",
        *(f"request_{p}_time" for p in parts),
    ):
        assert samples[f"vllm:{name}_seconds_count"] == 6
    spent = samples["vllm:e2e_request_latency_seconds_sum"]
    parts = ("queue", "inference")
    assert spent == pytest.approx(
        sum(samples[f"vllm:request_{part}_time_seconds_sum"] for part in parts), abs=0.01
    )
    assert samples["vllm:request_generation_tokens_sum"] == generated


# The names that vLLM's own Grafana dashboard asks for.
DASHBOARD = """e2e_request_latency_seconds prompt_tokens_total generation_tokens_total
inter_token_latency_seconds num_requests_running num_requests_waiting time_to_first_token_seconds
kv_cache_usage_perc request_prompt_tokens request_generation_tokens request_success_total
request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_max_num_generation_tokens""".split()


def test_vllms_dashboard_finds_its_names(client):
    families = metrics_of(client.get("/metrics").text)[0]
    for name in DASHBOARD:
        assert "model_name" in families[f"vllm:{name}"]["labels"]


def test_llm_has_the_same_numbers():
    llm = LLM(max_model_len=128)
    llm.generate("Hello", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    assert metrics["vllm:generation_tokens"].value == 4
    assert metrics["vllm:prompt_tokens"].value == 1
    itl = metrics["vllm:inter_token_latency_seconds"]
    assert (itl.count, itl.buckets["+Inf"]) == (3, 3)
    assert itl.sum > 0


# -- the notes' own commands -----------------------------------------------------------------------


def test_the_readmes_curl_lines_run(server):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    lines = re.findall(r"^curl .*?(?<!\\)$", readme, re.MULTILINE | re.DOTALL)
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line.replace("\\\n", " ").replace("http://localhost:8000", server.url))
        done = subprocess.run([*words, "-sS", "--fail"], capture_output=True, text=True, check=True)
        assert done.stdout


def test_the_embedded_models_directory_is_a_model_like_others():
    args = parse_args(["--model", str(embedded_model_path())])
    assert engine_args(args).model == str(embedded_model_path())


def test_a_body_has_the_fields_of_structured_outputs_params():
    ours = {f.alias or name for name, f in StructuredOutputs.model_fields.items()}
    params = {f.name for f in dataclasses.fields(StructuredOutputsParams) if f.init}
    assert ours == params | {"structural_tag"}
