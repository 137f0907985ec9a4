"""The server of a pooling model: its routes, answers, refusals and clients."""

import base64
import json
import math
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path

import langchain_openai as langchain
import numpy as np
import openai
import pytest
import torch
from http_server import serving
from schema_fuzz import assert_no_5xx
from text_pairs import save_classifier

from minivllm.embedded import embedded_classifier_path
from minivllm.outputs import PoolingOutput

TEXTS = ["Paris is the capital of France.", "A cat says meow."]
OTHERS = ["/v1/completions", "/v1/chat/completions"]
EMBEDDING, CLASSES, SCORES = "/v1/embeddings", "/classify", ["/score", "/v1/score"]
RANKS = ["/rerank", "/v1/rerank", "/v2/rerank"]
LONG = "word " * 1000


@pytest.fixture(scope="module")
def embedder():
    with serving("--task", "embed") as running:
        yield running


@pytest.fixture(scope="module")
def client(embedder):
    with embedder.client() as client:
        yield client
    assert embedder.idle()


def classifier(directory, num_labels, *words):
    save_classifier(directory, num_labels)
    return serving("--model", str(directory), "--max-model-len", "64", *words)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    with classifier(tmp_path_factory.mktemp("reranker"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def sorter(tmp_path_factory):
    with classifier(tmp_path_factory.mktemp("classifier"), 3) as running:
        yield running


def post(server, path, **body):
    """The status of an answer, and the answer."""
    with server.client() as client:
        answer = client.post(path, json=body)
    return answer.status_code, answer.json()


def embedding(server, **body):
    status, answer = post(server, EMBEDDING, **body)
    assert status == 200, answer
    return [np.array(one["embedding"]) for one in answer["data"]]


def numbers(data):
    """All numbers in a value of JSON, in their order."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        return [number for one in data for number in numbers(one)]
    return [data] if isinstance(data, (int, float)) else []


# -- routes ----------------------------------------------------------------------------------------


def test_a_model_has_the_routes_of_its_tasks(embedder, reranker, sorter):
    there = {"/pooling", "/invocations", "/tokenize"}
    for server, paths in (
        (embedder, {EMBEDDING, *SCORES, *RANKS}),
        (reranker, {CLASSES, *SCORES, *RANKS}),
        (sorter, {CLASSES}),
    ):
        for path in (*OTHERS, EMBEDDING, CLASSES, *SCORES, *RANKS, *there):
            status, answer = post(server, path)
            if path in paths | there:
                assert status == 400, path
            else:
                assert (status, answer) == (404, {"detail": "Not Found"}), path


def test_a_model_that_generates_has_none_of_them():
    with serving() as server:
        for path in ("/pooling", EMBEDDING, CLASSES, *SCORES, *RANKS):
            assert post(server, path, input="a") == (404, {"detail": "Not Found"})


def test_invocations_are_the_other_routes(embedder, reranker, sorter):
    for server, path, body in (
        (embedder, EMBEDDING, {"input": "a"}),
        (embedder, SCORES[0], {"text_1": "a", "text_2": "b"}),
        (reranker, RANKS[0], {"query": "a", "documents": ["b", "c"]}),
        (reranker, CLASSES, {"input": "a"}),
        (sorter, CLASSES, {"input": "a"}),
    ):
        (status, one), (_, other) = (post(server, p, **body) for p in (path, "/invocations"))
        assert status == 200
        assert one["id"].partition("-")[0] == other["id"].partition("-")[0]
        assert one.keys() == other.keys()
        (data,) = one.keys() & {"data", "results"}
        assert [place.keys() for place in one[data]] == [place.keys() for place in other[data]]
        np.testing.assert_allclose(numbers(one[data]), numbers(other[data]), atol=1e-5)
    status, answer = post(sorter, "/invocations", query="a", documents="b")
    assert (status, answer["error"]["param"]) == (400, "body.input")


# -- answers ---------------------------------------------------------------------------------------


def test_an_embedding_is_that_of_the_engine(embedder):
    status, answer = post(embedder, EMBEDDING, input=TEXTS, model="minivllm", user="me")
    assert status == 200
    assert answer["object"] == "list"
    assert [one["index"] for one in answer["data"]] == [0, 1]
    tokenizer = embedder.engine.tokenizer
    ids = [tokenizer.encode(text) for text in TEXTS]
    count = sum(map(len, ids))
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == count
    by_text = embedding(embedder, input=TEXTS)
    by_ids = embedding(embedder, input=ids)
    for one, two in zip(by_text, by_ids, strict=True):
        assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(one, two, atol=1e-6)
    np.testing.assert_allclose(embedding(embedder, input=ids[0])[0], by_text[0], atol=1e-5)
    np.testing.assert_allclose(embedding(embedder, input=TEXTS[1])[0], by_text[1], atol=1e-5)


def test_base64_holds_the_same_numbers(embedder):
    (want,) = embedding(embedder, input="a")
    for kind, order, letters in (
        ("float32", "native", "=f4"), ("float32", "big", ">f4"), ("float16", "little", "<f2"),
    ):  # fmt: skip
        _, answer = post(embedder, EMBEDDING, input="a", encoding_format="base64",
                         embed_dtype=kind, endianness=order)  # fmt: skip
        found = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), letters)
        np.testing.assert_allclose(found, want, atol=1e-6 if kind == "float32" else 1e-3)


def test_messages_are_rendered_without_an_open_turn(embedder):
    messages = [{"role": "user", "content": "Hi"}]
    tokenizer = embedder.engine.tokenizer
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    (want,) = embedding(embedder, input=text, add_special_tokens=False)
    np.testing.assert_allclose(embedding(embedder, messages=messages)[0], want, atol=1e-5)
    (opened,) = embedding(embedder, messages=messages, add_generation_prompt=True)
    assert np.abs(opened - want).max() > 1e-3


def test_a_long_text_is_cut_where_the_request_says(embedder):
    ids = embedder.engine.tokenizer.encode(LONG)
    for body, kept in (
        ({"truncate_prompt_tokens": -1}, ids[:512]),
        ({"truncate_prompt_tokens": 7}, ids[:7]),
        ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, ids[-7:]),
    ):
        (want,) = embedding(embedder, input=kept)
        for given in (LONG, ids):
            np.testing.assert_allclose(embedding(embedder, input=given, **body)[0], want, atol=1e-5)


def test_dimensions_are_cut_and_then_normalised(embedder):
    (whole,) = embedding(embedder, input="a")
    overrides = '{"matryoshka_dimensions": [4, 8]}'
    with serving("--task", "embed", "--hf-overrides", overrides) as server:
        (cut,) = embedding(server, input="a", dimensions=8)
        np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)
        _, answer = post(server, "/pooling", input="a", dimensions=8)
        np.testing.assert_allclose(answer["data"][0]["data"], cut, atol=1e-5)
        for wrong, says in ((5, "one of [4, 8]"), (10**6, "from 1 to 256")):
            status, answer = post(server, EMBEDDING, input="a", dimensions=wrong)
            assert status == 400
            assert says in answer["error"]["message"]
            assert answer["error"]["param"] == "dimensions"


def test_raw_numbers_of_a_task(embedder):
    _, whole = post(embedder, "/pooling", input=TEXTS)
    vectors = [one["data"] for one in whole["data"]]
    assert whole["data"][0]["object"] == "pooling"
    for one, two in zip(vectors, embedding(embedder, input=TEXTS), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    _, rows = post(embedder, "/pooling", input=TEXTS[0], task="token_embed")
    rows = np.array(rows["data"][0]["data"])
    assert len(rows) == len(embedder.engine.tokenizer.encode(TEXTS[0]))
    np.testing.assert_allclose(rows[-1], vectors[0], atol=1e-5)  # the last row is the embedding
    _, raw = post(embedder, "/pooling", input=TEXTS[0], use_activation=False)
    raw = np.array(raw["data"][0]["data"])
    np.testing.assert_allclose(raw / np.linalg.norm(raw), vectors[0], atol=1e-5)


def test_classes_have_labels(sorter):
    status, answer = post(sorter, CLASSES, input=TEXTS)
    assert status == 200
    for one in answer["data"]:
        assert sum(one["probs"]) == pytest.approx(1, abs=1e-5)
        assert one["num_classes"] == 3
        assert one["label"] == f"kind {np.argmax(one['probs'])}"
    status, answer = post(sorter, "/pooling", input=TEXTS[0], task="token_classify")
    assert np.array(answer["data"][0]["data"]).shape[1] == 3


def test_documents_are_put_in_order(embedder, reranker):
    for server in (embedder, reranker):
        body = {"documents": [*TEXTS, "Hello"]}
        _, scores = post(server, "/score", queries="cat", **body)
        numbers = [one["score"] for one in scores["data"]]
        _, ranked = post(server, "/rerank", query="cat", **body)
        order = [one["index"] for one in ranked["results"]]
        assert order == sorted(range(3), key=lambda i: -numbers[i])
        assert [one["document"]["text"] for one in ranked["results"]] == [
            body["documents"][i] for i in order
        ]
        found = [one["relevance_score"] for one in ranked["results"]]
        assert found == pytest.approx(sorted(numbers, reverse=True), abs=1e-5)
        assert ranked["usage"]["prompt_tokens"] == scores["usage"]["prompt_tokens"]
        _, best = post(server, "/v2/rerank", query="cat", top_n=1, **body)
        assert [one["index"] for one in best["results"]] == order[:1]


@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
              ("text_1", "text_2")],
)  # fmt: skip
def test_names_of_the_two_lists(reranker, names):
    first, second = names
    found = []
    for path in SCORES:
        status, answer = post(reranker, path, **{first: TEXTS, second: ["a", "b"]})
        assert status == 200
        found.append([one["score"] for one in answer["data"]])
    pairs = [post(reranker, "/score", text_1=one, text_2=two)[1]["data"][0]["score"]
             for one, two in zip(TEXTS, "ab", strict=True)]  # fmt: skip
    assert found[0] == pytest.approx(pairs, abs=1e-5)
    assert found[1] == pytest.approx(pairs, abs=1e-5)


def test_a_template_of_the_server_writes_pairs(tmp_path):
    template = (
        "{{ instruction or '' }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    with classifier(tmp_path, 1, "--chat-template", template) as server:
        ids = server.engine.tokenizer.encode("Rank.query: a\ndocument: b\n")
        body = {"queries": "a", "documents": "b"}
        _, short = post(server, "/score", instruction="Rank.", **body)
        assert short["usage"]["prompt_tokens"] == len(ids)
        _, long = post(server, "/score", chat_template_kwargs={"instruction": "Rank."}, **body)
        assert long["data"] == short["data"]


# -- refusals --------------------------------------------------------------------------------------

HI = [{"role": "user", "content": "Hi"}]
OF_INPUT = [
    ({}, "Field required"),
    ({"input": None}, "input"),
    ({"input": []}, "at least one prompt"),
    ({"input": ""}, "the prompt is empty"),
    ({"input": ["a", ""]}, "the prompt is empty"),
    ({"input": [[]]}, "the prompt is empty"),
    ({"input": 5}, "input"),
    ({"input": [1, "a"]}, "input"),
    ({"input": [-1]}, "input"),
    ({"input": [10**6]}, "every id in prompt_token_ids must be"),
    ({"input": ["a"] * 8193}, "may have 8192 prompts"),
    ({"input": LONG}, "shorten it"),
    ({"input": "a", "messages": HI}, "not both"),
    ({"messages": []}, "non-empty list"),
    ({"messages": [{"role": "user"}, {"content": "a"}]}, "needs a role"),
    ({"input": "a", "normalize": True}, "use `use_activation` instead"),
    ({"input": "a", "use_activation": "x"}, "use_activation"),
    ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"input": "a", "truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens must be at most"),
    ({"input": "a", "truncate_prompt_tokens": 0}, "the prompt is empty"),
    ({"input": "a", "truncation_side": "top"}, "truncation_side"),
    ({"input": "a", "cache_salt": ""}, "cache_salt must be"),
    ({"input": "a", "priority": 2**63}, "priority"),
    ({"input": "a", "padding": "max_length"}, "padding"),
    ({"input": "a", "mm_processor_kwargs": {"a": 1}}, "images"),
]
OF_VECTORS = [
    ({"input": "a", "dimensions": 0}, "dimensions must be an integer of at least 1"),
    ({"input": "a", "dimensions": 8}, "does not support Matryoshka"),
    ({"input": "a", "dimensions": 10**6}, "does not support Matryoshka"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "embed_dtype": "int4"}, "embed_dtype"),
    ({"input": "a", "endianness": "middle"}, "endianness"),
]
OF_TASKS = [
    ({"input": "a", "task": "classify"}, "it has 'embed', 'token_embed'"),
    ({"input": "a", "task": "score"}, "'classify' for a cross-encoder"),
    ({"input": "a", "task": "encode"}, "use 'token_embed'"),
    ({"input": "a", "task": "dance"}, "task must be one of"),
    ({"input": "a", "task": 5}, "task"),
]
PAIR = {"queries": "a", "documents": "b"}
OF_SCORES = [
    ({}, "two lists of texts"),
    ({"queries": "a"}, "two lists of texts"),
    ({"queries": "a", "data_2": "b"}, "two lists of texts"),
    ({"queries": [], "documents": "b"}, "At least one text element must be given"),
    ({"queries": "a", "documents": []}, "At least one text_pair element must be given"),
    ({"queries": ["a", "b"], "documents": ["c"]}, "either 1:1, 1:N or N:N"),
    ({"queries": ["a", "b"], "documents": ["c"] * 3}, "either 1:1, 1:N or N:N"),
    ({"queries": [1], "documents": ["c"]}, "queries"),
    ({"queries": {"content": []}, "documents": ["c"]}, "queries"),
    ({"queries": "a", "documents": LONG}, "shorten it"),
    ({"queries": "a", "documents": ["b"] * 8193}, "may have 8192 prompts"),
    (PAIR | {"max_tokens_per_query": -1}, "max_tokens_per_query"),
    (PAIR | {"max_tokens_per_doc": 10**6}, "max_tokens_per_doc must be from 0"),
    (PAIR | {"chat_template_kwargs": 5}, "chat_template_kwargs"),
    (PAIR | {"normalize": False}, "use `use_activation` instead"),
    (PAIR | {"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens must be at most"),
]
RANK = {"query": "a", "documents": ["b"]}
OF_RANKS = [
    ({}, "query: Field required"),
    ({"query": "a"}, "documents"),
    ({"documents": ["a"]}, "query"),
    ({"query": ["a"], "documents": ["b"]}, "query"),
    ({"query": "a", "documents": []}, "At least one text_pair element must be given"),
    ({"query": "a", "documents": None}, "documents"),
    ({"query": "a", "documents": ["b", 5]}, "documents"),
    ({"query": "a", "documents": LONG}, "shorten it"),
    (RANK | {"top_n": -1}, "top_n"),
    (RANK | {"top_n": "many"}, "top_n"),
    (RANK | {"normalize": True}, "use `use_activation` instead"),
    (RANK | {"truncation_side": 1}, "truncation_side"),
    (RANK | {"max_tokens_per_doc": 1.5}, "max_tokens_per_doc"),
]


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        *((EMBEDDING, *one) for one in OF_INPUT + OF_VECTORS),
        *(("/pooling", *one) for one in OF_INPUT + OF_VECTORS + OF_TASKS),
        *((CLASSES, *one) for one in OF_INPUT),
        *(("/score", *one) for one in OF_SCORES),
        *(("/rerank", *one) for one in OF_RANKS),
    ],
)
def test_a_bad_body_gets_a_sentence(request, client, route, body, says):
    if route == CLASSES:
        server = request.getfixturevalue("sorter")
        with server.client() as one:
            answer = one.post(route, json=body)
    else:
        answer = client.post(route, json=body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("route", [EMBEDDING, "/pooling", "/score", "/rerank", "/invocations"])
def test_what_is_no_json_of_a_body(client, route):
    for content, kind in (
        (b"{", "application/json"), (b"[]", "application/json"), (b"{}", "text/plain"),
        (b'{"input": "\xff"}', "application/json"), (b"", "application/json"),
    ):  # fmt: skip
        answer = client.post(route, content=content, headers={"content-type": kind})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


def test_a_model_that_is_not_served(client):
    for route, body in ((EMBEDDING, {"input": "a"}), ("/score", PAIR), ("/rerank", RANK)):
        answer = client.post(route, json=body | {"model": "gpt-4"})
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "model"


def test_a_number_that_is_none_is_an_error(monkeypatch):
    with serving("--task", "embed") as server:
        for bad in (math.nan, math.inf):
            monkeypatch.setattr(
                "minivllm.engine.pooling_state.PoolingOutput",
                lambda data, bad=bad: PoolingOutput(torch.full_like(data, bad)),
            )
            for path, body in ((EMBEDDING, {"input": "a"}), ("/score", PAIR)):
                status, answer = post(server, path, **body)
                assert status == 400
                assert "NaN" in answer["error"]["message"]


# -- the server around them ------------------------------------------------------------------------


def test_keys_limits_and_load():
    words = ("--task", "embed", "--api-key", "k", "--max-num-queued-reqs", "3",
             "--enable-server-load-tracking", "--enable-prompt-tokens-details")  # fmt: skip
    with serving(*words) as server:
        for path in (EMBEDDING, "/pooling", *SCORES, *RANKS, "/invocations"):
            assert post(server, path, input="a")[0] == 401, path
        with server.client(headers={"authorization": "Bearer k"}) as client:
            assert client.post(EMBEDDING, json={"input": ["a"] * 4}).status_code == 503
            assert (
                client.post("/score", json={"queries": "a", "documents": ["b"] * 3}).status_code
                == 503
            )
            long = "The same long beginning of two texts. " * 8
            for cached in (False, True):
                answer = client.post(EMBEDDING, json={"input": long}).json()
                assert bool(answer["usage"]["prompt_tokens_details"]["cached_tokens"]) is cached
            salted = client.post(EMBEDDING, json={"input": long, "cache_salt": "x"}).json()
            assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert client.get("/load").json() == {"server_load": 0}
            metrics = client.get("/metrics").text
        for name, labels, value in (
            ("request_success_total", 'engine="0",finished_reason="stop"', 3),
            ("time_to_first_token_seconds_count", 'engine="0"', 0),
        ):
            assert f'vllm:{name}{{{labels},model_name="minivllm"}} {value}.0' in metrics


def test_a_hang_up_frees_all_prompts_of_a_body():
    with serving("--task", "embed") as server:
        engine, seen = server.engine, []

        def ask():
            with server.client() as client:
                try:
                    client.post(
                        EMBEDDING, json={"input": [f"text {i}" for i in range(50)]}, timeout=0.5
                    )
                except Exception as error:
                    seen.append(type(error).__name__)

        with server.client() as client:
            loop = threading.Thread(target=ask)
            engine._client.submit(("pause",))
            loop.start()
            until = time.monotonic() + 10
            while len(engine.request_ids) < 50 and time.monotonic() < until:
                time.sleep(0.01)
            assert len(engine.request_ids) == 50
            loop.join()
            assert seen == ["ReadTimeout"]
            assert server.idle()
            assert client.get("/health").status_code == 200


def test_an_engine_in_a_process_of_its_own():
    with serving("--task", "embed", "--engine-process") as server:
        assert post(server, EMBEDDING, input="a" * 3000)[0] == 400
        status, answer = post(server, EMBEDDING, input=TEXTS)
        assert status == 200
        with serving("--task", "embed") as other:
            wants = embedding(other, input=TEXTS)
        for one, want in zip(answer["data"], wants, strict=True):
            np.testing.assert_allclose(one["embedding"], want, atol=1e-5)
        assert post(server, "/rerank", **RANK)[0] == 200


# -- clients ---------------------------------------------------------------------------------------


def test_openai_s_client(embedder):
    with openai.OpenAI(api_key="EMPTY", base_url=f"{embedder.url}/v1") as client:
        want = embedding(embedder, input=TEXTS)
        ids = [embedder.engine.tokenizer.encode(text) for text in TEXTS]
        for given in (TEXTS, ids):
            for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                answer = client.embeddings.create(model="minivllm", input=given, **form)
                for one, vector in zip(answer.data, want, strict=True):
                    found = one.embedding
                    if isinstance(found, str):  # asked for by name it stays as it was sent
                        found = np.frombuffer(base64.b64decode(found), "f4")
                    np.testing.assert_allclose(found, vector, atol=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, ids))
        with pytest.raises(openai.BadRequestError, match="Matryoshka"):
            client.embeddings.create(model="minivllm", input="a", dimensions=8)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="minivllm", prompt="a")


def test_langchain_s_embeddings(embedder):
    client = langchain.OpenAIEmbeddings(
        model="minivllm", api_key="EMPTY", base_url=f"{embedder.url}/v1",
        check_embedding_ctx_length=False,
    )  # fmt: skip
    want = embedding(embedder, input=TEXTS)
    for found, vector in zip(client.embed_documents(TEXTS), want, strict=True):
        np.testing.assert_allclose(found, vector, atol=1e-5)
    np.testing.assert_allclose(client.embed_query(TEXTS[0]), want[0], atol=1e-5)


def test_the_guides_curl_lines_run(embedder):
    guide = Path(__file__).parents[2] / "notebooks" / "guide" / "deployment.md"
    section = guide.read_text(encoding="utf-8").partition("## Pooling models")[2]
    lines = re.findall(r"^curl .*?(?<!\\)$", section, re.MULTILINE | re.DOTALL)
    assert len(lines) == 5
    with serving("--model", str(embedded_classifier_path())) as classifier:
        for line in lines:
            server = classifier if "/classify" in line else embedder
            line = line.replace("\\\n", " ").replace("http://localhost:8000", server.url)
            words = [*shlex.split(line), "-sS", "--fail"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            assert json.loads(done.stdout)["usage"]["prompt_tokens"] > 0


def test_the_schema_names_the_answers(client):
    paths = client.get("/openapi.json").json()["paths"]
    for path in (EMBEDDING, "/pooling", *SCORES, *RANKS):
        answer = paths[path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert answer["$ref"].endswith("Response")


@pytest.mark.slow
def test_nothing_that_schemathesis_thinks_of_is_our_fault(embedder, reranker):
    for server in (embedder, reranker):
        assert_no_5xx(server.url)
        assert server.idle()
