"""Endings of a server: with half a request there, after its process has died early."""

import json
import socket
import threading
import time

import pytest
from http_server import RunningServer

from minivllm import AsyncLLM
from minivllm.entrypoints.openai.cli_args import engine_args, parse_args

pytestmark = pytest.mark.slow

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"prompt": "x", "max_tokens": 400, "temperature": 0, "ignore_eos": True}).encode()


def half_a_question(server):
    """A connection that has sent a part of its body."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:9])
    time.sleep(0.2)
    return connection


def test_half_a_question_does_not_keep_a_server_from_ending():
    server = RunningServer()
    with half_a_question(server):
        server.stop(timeout=20)
    assert not server._thread.is_alive()
    assert not server.engine._client._thread.is_alive()


def test_a_question_that_is_complete_too_late_is_aborted():
    server = RunningServer()
    step = server.engine.engine_core.step
    server.engine.engine_core.step = lambda: (time.sleep(0.02), step())[
        1
    ]  # 400 would take 8 seconds
    with half_a_question(server) as connection:
        stopping = threading.Thread(target=server.stop, args=(20,))
        stopping.start()
        time.sleep(0.5)
        connection.sendall(BODY[9:])
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        stopping.join()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["finish_reason"] == "abort"


def test_a_process_that_dies_before_it_was_asked_anything_ends_its_server():
    args = parse_args(["--max-model-len", "64", "--engine-process"])
    server = RunningServer(engine=AsyncLLM(engine_args(args)))
    server.engine._client._process.kill()
    server._thread.join(20)
    assert not server._thread.is_alive()
    assert server.server.status == 1
    server.stop()
