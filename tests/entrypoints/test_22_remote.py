"""``minivllm chat --url`` and ``complete --url``: OpenAI's client against a running server."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from http_server import serving
from typer.testing import CliRunner

from minivllm.cli import app

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with serving("--api-key", "token-abc123") as running:
        yield running


def run(server, *words, key="token-abc123", **options):
    own = ["--url", server.url] if "--url" not in words else []
    env = {"OPENAI_API_KEY": key, "MINIVLLM_API_KEY": None}
    return CliRunner().invoke(app, [*words, *own], env=env, **options)


def test_a_question_at_a_server_and_here_get_the_same_answer(server):
    there = run(server, "chat", "-q", "How are you?", "--max-tokens", "20")
    here = CliRunner().invoke(app, ["chat", "--quick", "How are you?", "--max-tokens", "20"])
    assert there.exit_code == here.exit_code == 0
    assert len(there.stdout.split()) > 3
    assert there.stdout.strip() == here.stdout.strip().splitlines()[-1]


def test_a_chat_remembers(server):
    answers = run(server, "chat", "--system-prompt", "Be brief.", input="Hello\nAgain\n\n").stdout
    assert answers.count("minivllm:") == 2
    sent = []
    original = server.engine.add_request

    def listen(request_id, prompt, *args, **options):
        sent.append(prompt)
        return original(request_id, prompt, *args, **options)

    server.engine.add_request = listen
    try:
        run(server, "chat", "--system-prompt", "Be brief.", input="Hello\nAgain\n\n")
    finally:
        del server.engine.add_request
    assert len(sent) == 2
    decode = server.engine.get_tokenizer().decode
    text = decode(sent[1].prompt_token_ids)
    assert all(word in text for word in ("Be brief.", "Hello", "Again"))
    first = re.search(r"minivllm: (.*)", answers)[1]
    assert first.strip() in text


def test_completions(server):
    words = ("complete", "--temperature", "0", "--max-tokens", "3", "--model-name", "minivllm")
    result = run(server, *words, "-q", "The capital of France is", "--url", f"{server.url}/v1/")
    assert (result.exit_code, result.stdout.strip()) == (0, "Paris.")
    result = run(server, *words, input="The capital of France is\nThe capital of Japan is\n\n")
    assert "Paris." in result.stdout
    assert "Tokyo." in result.stdout


def test_what_a_server_refuses_is_a_sentence(server):
    result = run(server, "chat", "-q", "Hi", "--model", "gpt-4")
    assert result.exit_code == 2
    assert "The model `gpt-4` does not exist" in " ".join(result.stderr.split())
    result = run(server, "complete", "-q", "Hi", key="wrong")
    assert (result.exit_code, "401" in result.stderr) == (2, True)
    result = run(server, "complete", "-q", "Hi", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, "Connection error" in result.stderr) == (2, True)
    result = run(server, "complete", "--top-p", "3", input="Hi\n\n")
    assert result.exit_code == 0, "the next prompt may be better"
    assert "top_p must be" in result.stdout
    assert "Traceback" not in result.output


def test_a_key_without_a_server_is_not_shown():
    result = CliRunner().invoke(app, ["chat", "--api-key", "token-abc123", "-q", "Hi"])
    assert result.exit_code == 2
    assert "api_key must be left out without --url" in result.stderr
    assert "token-abc123" not in result.output


class Odd(BaseHTTPRequestHandler):
    """Answers what ``server.models`` and ``server.event`` say."""

    def do_GET(self):
        self.answer("application/json", self.server.models)

    def do_POST(self):
        self.answer("text/event-stream", f"data: {self.server.event}\n\ndata: [DONE]\n\n")

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def odd():
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        server.models, server.event = '{"data": [{"id": "m"}]}', '{"choices": []}'
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize(
    ("models", "event", "code"),
    [
        (None, '{"choices": [{"index": 0, "delta": null, "text": null}]}', 0),
        (None, '{"choices": null}', 0),
        (None, "[1]", 2),
        ('{"data": []}', None, 2),
        ('{"data": null}', None, 2),
        ('"hello"', None, 2),
    ],
)
def test_a_server_that_is_not_openais_gets_a_sentence(odd, command, models, event, code):
    odd.models, odd.event = models or odd.models, event or odd.event
    result = run(odd, command, "-q", "Hi")
    assert result.exit_code == code, result.stderr
    said = " ".join(result.stderr.split())
    assert ("does not answer as OpenAI's servers do" in said) is (code == 2)


def test_an_address_that_is_none_is_a_sentence(server):
    result = run(server, "complete", "-q", "Hi", "--url", "http://[::1")
    assert result.exit_code == 2
    assert "http://[::1/v1: " in result.stderr
