"""Endpoints of a server in dev mode: pause, resume, abort."""

import pytest
from http_server import serving

ENDLESS = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setenv("MINIVLLM_SERVER_DEV_MODE", "1")
    with serving() as server, server.client() as client:
        yield client


def aborted(client, **body):
    answer = client.post("/abort_requests", json=body).json()
    assert answer["status"] == "aborted"
    return answer["aborted"]


@pytest.mark.parametrize("body", [{}, {"request_ids": []}, {"request_ids": None}])
def test_without_names_all_are_aborted(client, body):
    with client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert aborted(client, **body) == 1
        assert any('"finish_reason":"abort"' in line for line in lines)
    assert aborted(client, **body) == 0


def test_named_ones_are_aborted_and_names_counted(client):
    one = ENDLESS | {"stream": True, "request_id": "one"}
    with client.stream("POST", "/v1/completions", json=one) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert aborted(client, request_ids=["cmpl-two"]) == 1
        assert '"finish_reason":null' in next(line for line in lines if line)
        assert aborted(client, request_ids=["cmpl-one", "cmpl-two"]) == 2
        assert any('"finish_reason":"abort"' in line for line in lines)


def test_a_cache_survives_a_pause_if_it_is_asked_to(client):
    body = {"prompt": [289] * 64, "max_tokens": 1}
    hits = "vllm:prefix_cache_hits_total"

    def found():
        client.post("/v1/completions", json=body)
        lines = client.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(hits)).rsplit(" ", 1)[1])

    first = found()
    for clear_cache, more in (("false", 32), ("true", 0)):
        assert client.post("/pause", params={"clear_cache": clear_cache}).status_code == 200
        assert client.get("/is_paused").json() == {"is_paused": True}
        client.post("/resume")
        before, first = first, found()
        assert first - before == more, clear_cache
    refused = client.post("/pause", params={"clear_cache": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "query.clear_cache")


def test_a_server_that_never_sleeps_is_awake(client):
    answer = client.get("/is_sleeping")
    assert (answer.status_code, answer.json()) == (200, {"is_sleeping": False})
