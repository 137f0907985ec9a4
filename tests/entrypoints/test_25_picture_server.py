"""Pictures sent to the server: OpenAI's client, attacks, bad bodies, and who is not disturbed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from http_server import RunningServer
from picture_attacks import DOMAINS, PUBLIC, attacks, folder, host, network
from picture_chats import (
    NUM_EMBEDS,
    data_uri,
    encoded,
    image_part,
    picture,
    save_picture_chat,
    user,
)

from minivllm.entrypoints.openai.background import BackgroundServer
from minivllm.multimodal import download

A, B = (data_uri(encoded(picture(seed))) for seed in range(2))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_picture_chat(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def allowed(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("media").resolve())


@pytest.fixture(scope="module")
def port():
    with host() as number:
        yield number


def start(directory, *words):
    """A server whose model is that of the directory; the usual words name the embedded one."""

    class Running(RunningServer):
        def __init__(self):
            BackgroundServer.__init__(
                self, str(directory), "--served-model-name", "minivllm", "--max-model-len", "256",
                "--num-gpu-blocks-override", "100", "--limit-mm-per-prompt", "image=3", *words,
            )  # fmt: skip

    return Running()


@pytest.fixture(scope="module")
def server(directory, allowed, port):
    words = ["--enable-prompt-tokens-details", "--allowed-local-media-path", str(allowed)]
    words += ["--allowed-media-domains", *DOMAINS]
    with start(directory, *words) as running:
        connector = running.engine.input_processor.multimodal.connector
        connector.network = network(port)
        yield running


def body(*parts, **more):
    return {
        "messages": [user(*parts)],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def ask(client, *parts, **more):
    return client.post(CHAT, json=body(*parts, **more))


def test_openais_client_sends_a_picture_and_streams_the_answer(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")
    asked = {
        "model": "minivllm", "max_tokens": 6, "temperature": 0,
        "messages": [user("What is this?", image_part(A, detail="auto"))],
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    pieces = [*client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True})]  # fmt: skip
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    plain = client.chat.completions.create(**asked | {"messages": [user("What is this?")]})
    more = whole.usage.prompt_tokens - plain.usage.prompt_tokens
    assert more == NUM_EMBEDS + 1, "placeholders are prompt tokens, and a line's end"
    assert pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    for usage in (whole.usage, pieces[-1].usage):
        assert usage.prompt_tokens_details.multimodal_tokens == {"image": NUM_EMBEDS}
    assert plain.usage.prompt_tokens_details.multimodal_tokens is None
    other = client.chat.completions.create(
        **asked | {"messages": [user("What is this?", image_part(B))]}
    )
    assert other.choices[0].message.content != whole.choices[0].message.content


def test_attacks_are_refused_and_the_server_goes_on(server, allowed):
    with server.client() as client:
        before = ask(client, "a", image_part(A)).json()["choices"]
        for name, (url, status) in attacks(allowed).items():
            answer = ask(client, "a", image_part(url))
            assert answer.status_code == status, (name, answer.text)
            error = answer.json()["error"]
            assert error["code"] == status
            assert error["message"].startswith("image 0 of 1: "), name
            for word in (str(allowed), str(allowed.parent), "Traceback", "root:", "site-packages"):
                assert word not in answer.text, name
        assert ask(client, "a", image_part(A)).json()["choices"] == before
    assert server.idle()


def test_what_is_allowed_is_answered(server, allowed):
    with server.client() as client:
        want = ask(client, "a", image_part(data_uri(encoded(picture(5))))).json()["choices"]
        assert ask(client, "a", image_part(f"file://{allowed}/cat.png")).json()["choices"] == want
        by_data = ask(client, "a", image_part(A)).json()["choices"]
        by_host = ask(client, "a", image_part("http://pictures.example/to?/a.png"))
        assert by_host.json()["choices"] == by_data
        for part in ({"image_url": A}, {"type": "input_image", "image_url": A}):
            assert ask(client, "a", part).json()["choices"] == by_data


def test_a_client_s_uuid_makes_no_two_pictures_one(server):
    """In vLLM the second question would be answered about the first picture."""
    with server.client() as client:
        question = "What is this?"
        plain, named = (
            [ask(client, question, image_part(url, **uuid), max_tokens=8).json()["choices"]
             for url in (A, B)]
            for uuid in ({}, {"uuid": "cat"})
        )  # fmt: skip
        assert named == plain
        assert named[0] != named[1]
        alone = ask(client, "q", {"type": "image_url", "image_url": None, "uuid": "cat"})
        assert alone.status_code == 400
        assert "a uuid alone names nothing here" in alone.json()["error"]["message"]


@pytest.mark.parametrize(
    ("parts", "more", "said", "param"),
    [
        (["a", *[image_part(A)] * 4], {}, "At most 3 image(s) may be provided in one pro", None),
        (["<image> <image>", image_part(A)], {}, "2 placeholders <image> in its text, but 1", None),
        (["What is <image>?"], {}, "has 1 placeholder <image> for 0 images; it needs", None),
        (["a", image_part(A)], {"truncate_prompt_tokens": 5}, "must be at least",
         "truncate_prompt_tokens"),
        (["a" * 230, image_part(A)], {}, "the context holds 256 tokens, prompt", "input_tokens"),
        (["a", image_part(A)], {"mm_processor_kwargs": {"do_rescale": False}},
         "takes no mm_processor_kwargs from a request; it would need --", "mm_processor_kwargs"),
        (["a", image_part(A)], {"media_io_kwargs": {"image": {}}},
         "takes no media_io_kwargs from a request; it would need --trust", "media_io_kwargs"),
        (["a", {"type": "image_pil", "image_pil": A}], {}, "must have one of the types tex", None),
        (["a", {"type": "image_url", "image_url": A}], {}, "must be a dict with a url", None),
        (["a", {"type": "audio_url", "audio_url": {"url": "data:,"}}], {}, "takes no audio;", None),
        (["a", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}], {},
         "this model takes no audio", None),
        (["a", {"type": "video_url", "video_url": {"url": A}}], {}, "model takes no video", None),
        (["a", {"type": "image_url", "image_url": {"url": 5}}], {}, "must be a string", None),
        (["a", {"type": ["image_url"], "image_url": {"url": A}}], {}, "one of the types", None),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_gets_one_sentence(server, parts, more, said, param):
    with server.client() as client:
        for stream in (False, True):
            answer = ask(client, *parts, **more, stream=stream)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, 400, param)
            assert said in error["message"]
            assert "\n" not in error["message"]


def test_a_completion_has_no_pictures(server):
    with server.client() as client:
        for stream in (False, True):
            asked = {"prompt": "What is <image>?", "max_tokens": 2, "stream": stream}
            answer = client.post("/v1/completions", json=asked)
            assert answer.status_code == 400
            assert "has 1 placeholder <image> for 0 images" in answer.json()["error"]["message"]
        asked = {"prompt": ["Hello", "<|image_1|>"], "max_tokens": 2}
        assert client.post("/v1/completions", json=asked).status_code == 200, "this is a text"


def test_metrics_have_the_processor_cache(server):
    with server.client() as client:
        ask(client, "a", image_part(A))
        lines = client.get("/metrics").text.splitlines()
    counted = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "mm_cache" in line
               and not line.startswith("#") and "_total" in line}  # fmt: skip
    assert counted["vllm:mm_cache_queries_total"] >= 1
    assert counted.keys() == {"vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total"}


def test_a_large_body_is_refused_before_it_is_read(server):
    with server.client() as client:
        answer = ask(client, "a", image_part("data:image/png;base64," + "A" * (33 * 2**20)))
        assert answer.status_code == 413


def test_tokens_of_a_chat_have_those_of_its_pictures(server):
    with server.client() as client:
        asked = body("a", image_part(A))
        counted = client.post("/tokenize", json=asked).json()
        used = client.post(CHAT, json=asked).json()["usage"]["prompt_tokens"]
        assert counted["count"] == len(counted["tokens"]) == used
        refused = client.post("/tokenize", json=body("a", image_part("/etc/passwd")))
        assert refused.status_code == 400


def waiting_network(port):
    """A network whose resolver waits; two events: it has begun, and it may go on."""
    begun, go_on = threading.Event(), threading.Event()

    def resolve(name, to_port):
        begun.set()
        go_on.wait(60)
        return [PUBLIC]

    return download.Network(resolve, network(port).connect), begun, go_on


def test_who_waits_for_a_picture_holds_up_no_other(directory, port):
    """More than there are threads for pictures: texts and the engine go on meanwhile."""
    part = image_part("http://pictures.example/a.png")
    with start(directory, "--allowed-media-domains", *DOMAINS) as running:
        connector = running.engine.input_processor.multimodal.connector
        connector.network, begun, go_on = waiting_network(port)
        with running.client() as client, ThreadPoolExecutor(9) as threads:
            waiting = [threads.submit(ask, client, "a", part) for _ in range(9)]
            assert begun.wait(60)
            assert [ask(client, "Hello " * n).status_code for n in range(3)] == [200] * 3
            assert client.get("/health").status_code == 200
            assert not any(one.done() for one in waiting)
            go_on.set()
            assert [one.result().status_code for one in waiting] == [200] * 9


def test_requests_are_admitted_before_their_pictures_are_read(directory, port):
    words = ["--allowed-media-domains", *DOMAINS, "--max-num-queued-reqs", "1"]
    with start(directory, *words) as running:
        connector = running.engine.input_processor.multimodal.connector
        connector.network, begun, go_on = waiting_network(port)
        part = image_part("http://pictures.example/a.png")
        with running.client() as client, ThreadPoolExecutor(1) as threads:
            first = threads.submit(ask, client, "a", part)
            assert begun.wait(30)
            begun.clear()
            assert ask(client, "a", part).status_code == 503
            assert not begun.is_set(), "nothing is fetched for it"
            go_on.set()
            assert first.result().status_code == 200
            assert ask(client, "a", part).status_code == 200, "its room is free again"


def test_a_trusted_request_brings_its_own_options(directory):
    with start(directory, "--trust-request-mm-kwargs") as running, running.client() as client:
        plain = ask(client, "a", image_part(A)).json()["choices"]
        raw = ask(client, "a", image_part(A), mm_processor_kwargs={"do_rescale": False})
        assert raw.json()["choices"] != plain
        io = {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}}
        assert ask(client, "a", image_part(A), **io).json()["choices"] == plain
        for wrong, said in (
            ({"mm_processor_kwargs": {"magic": 1}}, "no argument 'magic'"),
            ({"media_io_kwargs": {"image": {"image_mode": "CMYK"}}}, "image_mode must be"),
            ({"media_io_kwargs": {"sound": {}}}, "no argument 'sound'"),
        ):
            answer = ask(client, "a", image_part(A), **wrong)
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]


def test_a_text_model_says_so(tiny_chat):
    with start(tiny_chat) as running, running.client() as client:
        for part in (image_part("data:image/png;base64,AAAA"), image_part("file:///etc/passwd")):
            answer = ask(client, part)
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "message": "minivllm is not a multimodal model", "type": "BadRequestError",
                "param": None, "code": 400,
            }  # fmt: skip
        assert ask(client, "Hello <image>").status_code == 200


@pytest.mark.slow
def test_pictures_reach_engines_in_other_processes(directory, server):
    with server.client() as client:
        want = [ask(client, "z", image_part(url)).json()["choices"] for url in (A, B)]
    with start(directory, "--data-parallel-size", "2") as running, running.client() as client:
        got = [ask(client, "z", image_part(url)).json() for url in (A, B, A, B)]
        texts = [[choice["message"] for choice in one["choices"]] for one in got]
        assert texts == [[choice["message"] for choice in one] for one in want] * 2
        assert ask(client, "a", image_part("/etc/passwd")).status_code == 400
        events = client.post(CHAT, json=body("z", image_part(A), stream=True)).text
    chunks = [json.loads(line[6:]) for line in events.split("\n\n") if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == texts[0][0]["content"]
