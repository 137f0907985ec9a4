"""The glass server: what its stream shows, that it slows no request, and who may look and press."""

import asyncio
import contextlib
import http.client
import json
import re
import shlex
import socket
import threading
import time
from pathlib import Path

import pytest
from http_recordings import events_of
from http_server import serving

from minivllm import AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.entrypoints.chat_utils import apply_chat_template
from minivllm.entrypoints.openai.cli_args import parse_args
from minivllm.entrypoints.openai.glass.transcripts import LastTurn
from minivllm.lab.bench.serving.command import bench_serve
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.page.live import picture
from minivllm.trace.records import RequestAdded, StepEnded

pytestmark = pytest.mark.slow

LIMITS = {"num_gpu_blocks_override": 61, "block_size": 4, "max_model_len": 64, "max_num_seqs": 4,
          "max_num_batched_tokens": 32, "disable_log_stats": True}  # fmt: skip
ASK = {"prompt": "The capital of France is", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server():
    with serving("--glass", "--num-gpu-blocks-override", "61", "--block-size", "16") as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client
    assert server.idle()


class Watcher:
    """A page: it reads pictures in a thread of its own, and keeps them."""

    def __init__(self, server, **headers):
        self.pictures = []
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request("GET", "/glass/events", headers=headers)
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self):
        answer = self._connection.getresponse()
        self._socket = answer.fp.raw._sock
        while line := answer.readline():
            if line.strip():
                self.pictures.append(json.loads(line.removeprefix(b"data: ")))

    def until(self, condition, seconds=10):
        """The latest picture, as soon as it is as it should be."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.pictures and condition(self.pictures[-1]):
                return self.pictures[-1]
            time.sleep(0.01)
        raise AssertionError(f"no such picture; the last one: {self.pictures[-1:]}")

    def __enter__(self):
        self.thread.start()
        self.until(lambda picture: True)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # the server has ended it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)


def ask(server, **more):
    """A request in a thread. Returns the thread, and a list that will hold the answer."""
    answers = []

    def post():
        with server.client() as client:
            answers.append(client.post("/v1/completions", json={**ASK, **more}).json())

    thread = threading.Thread(target=post)
    thread.start()
    return thread, answers


def letters(picture, queue=0):
    owners = picture["run"]["owners"]
    return [owners[index]["letter"] for index in picture["frame"]["queues"][queue] or []]


# -- what is shown -----------------------------------------------------------------------------


def test_pause_step_and_resume(server, client):
    with Watcher(server) as page:
        assert client.post("/glass/pause").json() == {"status": "paused"}
        page.until(lambda p: p["pace"] == 0)
        first = page.pictures[-1]["numbers"]["step"]
        threads = [ask(server), ask(server, prompt="Hello, my name is")]
        waiting = page.until(lambda p: p["numbers"]["waiting"] == 2)
        assert letters(waiting) == []
        assert waiting["numbers"]["step"] == first
        for step in range(1, 4):
            client.post("/glass/step")
            shown = page.until(lambda p, n=step: p["numbers"]["step"] == first + n)
            assert len(letters(shown)) == shown["numbers"]["running"] == 2
        assert shown["numbers"]["free"] == 60 - len(
            {b for r in shown["frame"]["rows"] for b in r[5]}
        )
        assert "decode" in shown["frame"]["words"][1]
        timeline = shown["timeline"]
        assert timeline["first"] + timeline["steps"] - 1 == first + 3
        time.sleep(0.3)
        assert page.pictures[-1]["numbers"]["step"] == first + 3, "it stands still"
        client.post("/glass/resume")
        for thread, answers in threads:
            thread.join(30)
            assert answers[0]["usage"]["completion_tokens"] == 40
        page.until(lambda p: p["numbers"]["running"] == 0 and p["numbers"]["free"] == 60)


def test_slowly(server, client):
    with Watcher(server) as page:
        client.post("/glass/resume", params={"steps_per_second": 20})
        page.until(lambda p: p["pace"] == 20)
        began = time.monotonic()
        thread, _ = ask(server, max_tokens=10)
        thread.join(30)
        assert time.monotonic() - began > 0.4, "ten steps take half a second"
        client.post("/glass/resume")
        page.until(lambda p: p["pace"] is None)


@pytest.mark.parametrize("pace", ["0", "-1", "101", "nan", "fast"])
def test_a_pace_that_is_none(client, pace):
    answer = client.post("/glass/resume", params={"steps_per_second": pace})
    assert answer.status_code == 400
    assert "steps_per_second" in answer.json()["error"]["message"]


def test_who_hangs_up_frees_his_blocks_before_your_eyes(server, client):
    with Watcher(server) as page:
        client.post("/glass/pause")
        with server.client() as other:
            body = {**ASK, "stream": True, "max_tokens": 300}
            with other.stream("POST", "/v1/completions", json=body):
                page.until(lambda p: p["numbers"]["waiting"] == 1)
                client.post("/glass/step")
                held = page.until(lambda p: p["numbers"]["running"] == 1)
                assert held["numbers"]["free"] < 60
        freed = page.until(lambda p: p["numbers"]["free"] == 60)
        assert "is aborted and gives back block" in freed["frame"]["words"][2]
        assert freed["pace"] == 0, "no step was needed"


def test_the_prefix_cache_is_counted_as_the_metrics_count_it(server, client):
    prompt = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3
    with Watcher(server) as page:
        for _ in range(3):
            client.post("/v1/completions", json={**ASK, "prompt": prompt, "max_tokens": 2})
        metrics = {m.name: m for m in server.engine.metrics[0].read()}
        hits = metrics["vllm:prefix_cache_hits"].value
        assert hits > 60
        shown = page.until(lambda p: p["numbers"]["cached"] == hits)
        assert shown["numbers"]["prompt"] == metrics["vllm:prefix_cache_queries"].value


def test_a_new_page_sees_at_once_how_things_stand(server, client):
    client.post("/glass/pause")
    thread, _ = ask(server, n=2, temperature=1, seed=1)
    with Watcher(server) as page:
        page.until(lambda p: p["numbers"]["waiting"] == 1)
        client.post("/glass/step")
        page.until(lambda p: p["numbers"]["running"] == 2)
        with Watcher(server) as late:
            assert late.pictures[0]["numbers"]["running"] == 2
            shared = late.pictures[0]["frame"]["rows"]
            assert len(shared) == 2
            assert shared[0][5] == shared[1][5], "the samples share their blocks"
        client.post("/glass/resume")
        thread.join(30)


def test_requests_come_with_their_texts_also_when_they_are_finished(server, client):
    with Watcher(server) as page:
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
        chat = client.post("/v1/chat/completions", json=body).json()
        two = {"prompt": "The capital of France is " * 50, "n": 2, "temperature": 1, "seed": 1}
        long = client.post("/v1/completions", json={**ASK, **two}).json()

        def has_ended(request):  # pictures of earlier requests may come first
            return request["id"].startswith(long["id"]) and not request["going"]

        shown = page.until(lambda p: any(map(has_ended, p["requests"][-1:])))
        completion = shown["requests"][-1]
        assert completion["kind"] == "Completion"
        assert completion["prompt"].startswith("…"), "only the end of a long prompt"
        assert two["prompt"].strip().endswith(completion["prompt"].removeprefix("…"))
        assert len(completion["answers"]) == 2
        for (index, text), choice in zip(completion["answers"], long["choices"], strict=True):
            assert shown["run"]["owners"][index]["id"].startswith(long["id"])
            assert text == choice["text"].strip()
        chats = [r for p in page.pictures for r in p["requests"] if r["id"].startswith(chat["id"])]
        assert (chats[-1]["kind"], chats[-1]["going"]) == ("Chat", False)
        assert chats[-1]["prompt"] == "Hello"
        said = chat["choices"][0]["message"]["content"]
        assert [text for _, text in chats[-1]["answers"]] == [said.strip()]


def test_when_the_last_page_goes_the_engine_goes_on(server, client):
    with Watcher(server) as page:
        client.post("/glass/pause")
        page.until(lambda p: p["pace"] == 0)
        thread, answers = ask(server)
        page.until(lambda p: p["numbers"]["waiting"] == 1)
    thread.join(10)
    assert answers[0]["usage"]["completion_tokens"] == 40


# -- no request waits for it -------------------------------------------------------------------


def test_a_page_that_never_reads_slows_nobody_and_costs_one_picture(server, client):
    deaf = socket.create_connection(("127.0.0.1", server.port))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(b"GET /glass/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    show = server.app.state.glass
    with Watcher(server) as page:
        assert show.num_watchers == 2
        for _ in range(5):
            answer = client.post("/v1/completions", json={**ASK, "max_tokens": 200})
            assert answer.json()["usage"]["completion_tokens"] == 200
        page.until(lambda p: p["numbers"]["running"] == 0)
        steps = [picture["numbers"]["step"] for picture in page.pictures]
        assert steps == sorted(steps)
        assert steps[-1] - steps[0] >= 990
        assert len(steps) < 990, "several steps are one picture"
        assert not show._records
        assert server.engine.engine_core.trace.records == [], "the trace keeps nothing"
    deaf.close()
    deadline = time.monotonic() + 5
    while show.num_watchers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert show.num_watchers == 0


def test_without_pages_nothing_is_drawn(server, client, monkeypatch):
    show, drawn = server.app.state.glass, []
    monkeypatch.setattr(
        "minivllm.entrypoints.openai.glass.show.picture", lambda run: drawn.append(run)
    )
    client.post("/v1/completions", json=ASK)
    deadline = time.monotonic() + 5
    while show._run.step < server.engine.engine_core.trace.step and time.monotonic() < deadline:
        time.sleep(0.01)
    assert show._run.step == server.engine.engine_core.trace.step, "but the state is followed"
    assert not drawn


def test_a_page_does_not_wait_for_work_that_is_not_its_own(monkeypatch):
    """A picture that a busy machine draws late is not followed by a rest nine times as long."""
    show = "minivllm.entrypoints.openai.glass.show.picture"
    with serving("--glass") as server, server.client() as client:

        def late(run):
            time.sleep(1)
            return picture(run)

        monkeypatch.setattr(show, late)
        with Watcher(server) as page:
            count = len(page.pictures)
            client.post("/v1/completions", json=ASK)
            page.until(lambda p: len(page.pictures) > count, seconds=7)


def test_a_picture_that_cannot_be_drawn_ends_the_show_and_nothing_else(monkeypatch):
    with serving("--glass") as server, Watcher(server) as page, server.client() as client:

        def fail(run):
            time.sleep(0.3)  # records come meanwhile
            raise RuntimeError("no paint")

        monkeypatch.setattr("minivllm.entrypoints.openai.glass.show.picture", fail)
        answer = client.post("/v1/completions", json=ASK)
        assert answer.json()["usage"]["completion_tokens"] == 40
        page.thread.join(10)
        assert not page.thread.is_alive(), "its stream ends"
        client.post("/v1/completions", json=ASK)
        assert not server.app.state.glass._records
        assert client.get("/health").status_code == 200


def test_a_server_ends_at_once_though_it_is_watched():
    with serving("--glass") as server:
        page = Watcher(server).__enter__()
        began = time.monotonic()
    assert time.monotonic() - began < 5
    page.thread.join(5)
    assert not page.thread.is_alive()


def test_an_engine_in_a_process_is_watched_as_well():
    with serving("--glass", "--engine-process") as server, Watcher(server) as page:
        with server.client() as client:
            client.post("/v1/completions", json=ASK)
        shown = page.until(lambda p: p["numbers"]["step"] == 39)
        assert shown["numbers"]["running"] == 0


# -- who may look and press --------------------------------------------------------------------


def test_off_by_default():
    args = parse_args([])
    assert (args.glass, args.host, args.trace) == (False, None, False)
    with serving() as server, server.client() as client:
        for path in ("/glass", "/glass/events"):
            assert client.get(path).status_code == 404


def test_loopback_unless_said_otherwise():
    assert parse_args(["--glass"]).host == "127.0.0.1"
    assert parse_args(["--glass", "--host", "0.0.0.0"]).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([], (48, 512)),
        (["--max-model-len", "700"], (48, 700)),
        (["--block-size", "4"], (48, 188)),
        (["--max-model-len", "2048"], (None, 2048)),
        (["--num-gpu-blocks-override", "60"], (60, None)),
        (["--kv-cache-memory-bytes", "1000000"], (None, None)),
        (["--gpu-memory-utilization", "0.5"], (None, None)),
        (["some/model"], (None, None)),
    ],
)
def test_the_pool_is_small_if_no_size_is_given(words, sizes):
    args = parse_args(["--glass", *words])
    assert (args.num_gpu_blocks_override, args.max_model_len) == sizes
    assert args.small_pool == (sizes[0] == 48)
    usual = parse_args(words)
    assert usual.num_gpu_blocks_override != 48, "without the flag nothing changes"


def test_the_root_leads_to_the_page(client):
    answer = client.get("/", follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/glass")


TURNS = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n",
    "instructions": "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} "
    "[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    "headers": "<|begin|>{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n"
    "{{ m.content | trim }}<|eot|>{% endfor %}<|start|>assistant<|end|>\n\n",
}


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("said", ["Hello", "user\n\nassistant", "[one] <two>\nthree"])
def test_of_a_chats_prompt_only_the_last_message_is_shown(server, name, said):
    tokenizer = server.engine.tokenizer
    earlier = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    for before in ([], earlier):
        messages = [*before, {"role": "user", "content": said}]
        text = apply_chat_template(tokenizer, messages, TURNS[name])
        assert LastTurn(tokenizer, TURNS[name]).of(text) == said


def test_pages_of_others_may_neither_look_nor_press(client):
    port = client.base_url.port
    for path, method in [("", "GET"), ("/events", "GET"), ("/pause", "POST"), ("/step", "POST"),
                         ("/resume", "POST")]:  # fmt: skip
        for headers in (
            {"origin": "https://example.org"}, {"origin": "null"},
            {"origin": f"http://127.0.0.1:{port + 1}"},
            {"host": "rebound.example.org"}, {"host": ""},
        ):  # fmt: skip
            answer = client.request(method, f"/glass{path}", headers=headers)
            assert answer.status_code == 403, (path, headers)
            assert "/glass is for pages of this server" in answer.text
    own = {"origin": f"http://127.0.0.1:{port}"}
    assert client.post("/glass/resume", headers=own).status_code == 200
    assert client.get("/glass", headers={"host": f"localhost:{port}"}).status_code == 200


def test_with_keys_only_the_bare_page_is_open():
    with serving("--glass", "--api-key", "secret") as server, server.client() as client:
        assert client.get("/glass").status_code == 200
        for path, method in [("events", "GET"), ("pause", "POST")]:
            assert client.request(method, f"/glass/{path}").status_code == 401
        with Watcher(server, authorization="Bearer secret") as page:
            assert page.pictures[0]["numbers"]["step"] == -1


def test_the_page_loads_nothing_from_elsewhere(client):
    answer = client.get("/glass")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.text
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "<title>minivllm behind glass</title>" in page
    assert "/glass" not in json.dumps(client.get("/openapi.json").json()["paths"])


# -- the guide's page --------------------------------------------------------------------------


def test_what_the_guide_types():
    page = (Path(__file__).parents[2] / "notebooks/guide/glass.md").read_text()
    serve = shlex.split(re.search(r"```bash\nminivllm serve (.*)\n```", page)[1])
    load = shlex.split(re.search(r"`minivllm bench serve (.*?)`", page)[1])
    assert [serve[0], load[0]] == ["--glass", "--dataset-name"]
    with serving(*serve, "--block-size", "16") as server, Watcher(server) as watcher:
        result = bench_serve([*load, "--base-url", server.url, "--disable-tqdm"])
        assert (result["completed"], result["failed"]) == (64, 0)
        assert server.engine.engine_core.scheduler.num_preemptions > 0
        shown = filter(None, (picture["timeline"] for picture in watcher.pictures))
        rows = [row for timeline in shown for row in timeline["rows"]]
        assert any(preempted for _, _, _, preempted, *_ in rows)


# -- the engine that is followed ---------------------------------------------------------------


def test_whoever_follows_gets_all_records_and_the_trace_keeps_none(tiny_qwen2):
    model = {"model": str(tiny_qwen2), "skip_tokenizer_init": True, **LIMITS}
    engine = AsyncLLM(AsyncEngineArgs(**model, trace=True))
    records = []
    engine.follow(records.extend)

    async def one(i):
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        async for output in engine.generate([1, 2, 3, i], params, f"r{i}"):
            last = output
        return last.outputs[0].token_ids

    async def main():
        await engine.pause_generation(mode="keep")
        tasks = [asyncio.ensure_future(one(i)) for i in range(6)]
        while sum(isinstance(r, RequestAdded) for r in records) < 6:
            await asyncio.sleep(0.001)
        for step in range(1, 4):
            await engine.resume_generation(num_steps=1)
            while sum(isinstance(r, StepEnded) for r in records) < step:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert sum(isinstance(r, StepEnded) for r in records) == 3, "a step at a time"
        await engine.resume_generation()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(main())
    num_blocks, block_size = engine.kv_cache_config.num_blocks, LIMITS["block_size"]
    run = LiveRun(num_blocks, block_size, LIMITS["max_num_batched_tokens"])
    run.update(records)
    assert [run.state.sequences[f"r{i}"].token_ids[4:] for i in range(6)] == answers
    assert engine.engine_core.trace.records == []
    engine.shutdown()


def test_steps_asked_for_an_idle_engine_are_not_taken_later(tiny_qwen2):
    model = {"model": str(tiny_qwen2), "skip_tokenizer_init": True, **LIMITS}
    engine = AsyncLLM(AsyncEngineArgs(**model))

    async def main():
        await engine.pause_generation(mode="keep")
        await engine.resume_generation(num_steps=1)
        await asyncio.sleep(0.02)
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        await engine.add_request("r", [1, 2, 3], params)
        await asyncio.sleep(0.05)
        assert (engine.num_running, engine.num_waiting) == (0, 1)

    asyncio.run(main())
    engine.shutdown()


def test_an_engine_without_a_trace_cannot_be_followed(tiny_qwen2):
    engine = AsyncLLM(AsyncEngineArgs(str(tiny_qwen2), skip_tokenizer_init=True, **LIMITS))
    with pytest.raises(ValueError, match="trace must be True"):
        engine.follow(lambda records: None)
    engine.shutdown()


def test_a_stream_joined_is_the_same_under_glass(client):
    whole = client.post("/v1/completions", json=ASK).json()["choices"][0]["text"]
    text = client.post("/v1/completions", json={**ASK, "stream": True}).text
    pieces = [event["choices"][0]["text"] for event in events_of(text) if event != "[DONE]"]
    assert "".join(pieces) == whole
