"""Two servers and a proxy: one computes prompts in a process of its own, the other continues."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn
from http_server import USUAL, serving

from minivllm.deploy.disagg_proxy import body_for_prefill, has_one_prompt, make_app

pytestmark = pytest.mark.slow


def config(role, folder):
    return json.dumps(
        {
            "kv_connector": "ExampleConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(folder), "load_timeout": 5},
        }
    )


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A prefill server's address, a decode server, and the proxy's address."""
    folder = tmp_path_factory.mktemp("shared")
    port = free_port()
    words = [*USUAL, "--port", str(port), "--kv-transfer-config", config("kv_producer", folder)]
    process = subprocess.Popen([sys.executable, "-m", "minivllm", "serve", *words])
    prefill = f"http://127.0.0.1:{port}"
    try:
        with serving("--kv-transfer-config", config("kv_consumer", folder)) as decode:
            wait_for(f"{prefill}/health", process)
            with Proxy([prefill], [decode.url]) as url:
                yield prefill, decode, url
    finally:
        process.terminate()
        process.wait(20)


def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url, process):
    until = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError("the prefill server does not start")


class Proxy:
    """The proxy in a thread."""

    def __init__(self, prefill, decode):
        port = free_port()
        app = make_app(prefill, decode)
        self.server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self.url

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join()


def metric(server, name):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
COMMON = {"temperature": 0, "max_tokens": 12, "model": "minivllm"}


def answer(url, path, body):
    found = httpx.post(f"{url}/v1/{path}", json=body | COMMON, timeout=60)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "My name is Ada. I live in Paris, and " * 3}),
        ("completions", {"prompt": [7, 8, 9] * 30}),
        ("chat/completions", CHAT),
        ("completions", {"prompt": ["two prompts", "are computed by the decode server"]}),
    ],
)
def test_the_proxy_says_what_one_server_says(servers, path, body):
    _, decode, url = servers
    got = answer(url, path, body)
    httpx.post(f"{decode.url}/reset_prefix_cache")
    want = answer(decode.url, path, body)
    strip = {"id", "created", "usage"}
    assert {k: v for k, v in got.items() if k not in strip} == {
        k: v for k, v in want.items() if k not in strip
    }
    assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]


def test_a_stream_comes_through_and_others_beside_it(servers):
    _, decode, url = servers
    want = answer(decode.url, "chat/completions", CHAT)["choices"][0]["message"]["content"]

    def stream(_):
        text = ""
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=CHAT | COMMON | {"stream": True}, timeout=60
        ) as found:
            for line in found.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        return text

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(stream, range(6))) == [want] * 6


def test_the_decode_server_computes_one_token_of_a_prompt(servers):
    prefill, decode, _ = servers
    body = {"prompt": [3, 4] * 40} | COMMON
    asked = body_for_prefill(body)
    sent = httpx.post(f"{prefill}/v1/completions", json=asked, timeout=60).json()
    params = sent["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    body["kv_transfer_params"] = params
    found = httpx.post(f"{decode.url}/v1/completions", json=body, timeout=60).json()
    assert found["kv_transfer_params"] is None
    assert len(found["choices"][0]["text"]) > 0
    body["kv_transfer_params"] = params | {"remote_name": "0" * 64}
    wrong = httpx.post(f"{decode.url}/v1/completions", json=body, timeout=60)
    assert wrong.status_code == 400
    assert "remote_name" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_name": "../../etc"},
        {"do_remote_prefill": True, "remote_name": "0" * 64},
        {"do_remote_prefill": 1},
        {"do_remote_prefill": True, "do_remote_decode": True},
        {"do_remote_decode": True},  # of a server that fetches
        [1],
        "text",
    ],
)
def test_what_cannot_be_asked_is_refused_with_400(servers, params):
    _, decode, _ = servers
    body = {"prompt": [3, 4] * 40, "kv_transfer_params": params} | COMMON
    found = httpx.post(f"{decode.url}/v1/completions", json=body, timeout=60)
    assert found.status_code == 400
    message = found.json()["error"]["message"]
    assert "kv_transfer_params" in message


def test_what_is_wrong_is_said_and_a_server_that_is_gone_too(servers):
    _, decode, url = servers
    assert httpx.post(f"{url}/v1/completions", content=b"{").status_code == 400
    assert httpx.post(f"{url}/v1/completions", json=[]).status_code == 400
    found = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "model": "other"})
    assert found.status_code == 404
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "minivllm"
    with Proxy([f"http://127.0.0.1:{free_port()}"], [decode.url]) as alone:
        found = httpx.post(f"{alone}/v1/completions", json={"prompt": "a"} | COMMON)
        assert found.status_code == 502


def test_which_requests_have_one_prompt():
    assert has_one_prompt({"messages": []})
    assert has_one_prompt({"prompt": [1, 2]})
    assert not has_one_prompt({"prompt": ["a", "b"]})
    assert not has_one_prompt({"prompt": []})
    assert not has_one_prompt({"prompt": "a", "use_beam_search": True})
