"""Clients that others have written: OpenAI's, LangChain's, lm-eval's calls, schemathesis."""

import langchain_openai as langchain
import openai
import pytest
from http_server import serving
from schema_fuzz import assert_no_5xx

pytestmark = pytest.mark.slow

TABLE = """Answer questions about this table.

| ID | Name | Age | Occupation | Country |
|----|------|-----|------------|---------|
| 1 | Ada Hart | 36 | Engineer | UK |
"""
MESSAGES = [
    {"role": "system", "content": TABLE},
    {"role": "user", "content": "How old is Ada Hart?"},
]


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1") as client:
        yield client


def test_the_quickstart_of_vllm(client):
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == "minivllm"
    completion = client.completions.create(model=model, prompt="San Francisco is a")
    assert completion.choices[0].finish_reason in ("length", "stop")
    chat = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0)
    assert "36" in chat.choices[0].message.content


def test_streams_of_the_client(client):
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="minivllm", messages=MESSAGES, temperature=0, stream=True, stream_options=options,
            logprobs=True, top_logprobs=1,
        )
    )  # fmt: skip
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "36" in said
    assert chunks[-1].usage.completion_tokens > 3
    assert chunks[1].choices[0].logprobs.content[0].top_logprobs[0].token
    pieces = client.completions.create(
        model="minivllm", prompt="Hello", max_tokens=5, stream=True, extra_body={"top_k": 1}
    )
    assert "".join(piece.choices[0].text for piece in pieces)


def test_errors_of_the_client(client):
    import openai

    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="minivllm", prompt="x", temperature=3)
    with pytest.raises(openai.APIError, match="at most max_logprobs=20"):
        list(client.completions.create(model="minivllm", prompt="x", logprobs=21, stream=True))


def test_langchain(server):
    common = {"model": "minivllm", "api_key": "EMPTY", "base_url": f"{server.url}/v1",
              "temperature": 0, "max_tokens": 16}  # fmt: skip
    chat = langchain.ChatOpenAI(**common)
    roles = {"system": "system", "user": "human"}
    messages = [(roles[m["role"]], m["content"]) for m in MESSAGES]
    assert "36" in chat.invoke(messages).content
    assert "36" in "".join(piece.content for piece in chat.stream(messages))
    complete = langchain.OpenAI(**common)
    assert "Paris" in complete.invoke("The capital of France is")
    assert len(complete.batch(["The capital of France is", "Hello, my name is"])) == 2


def test_what_lm_eval_asks_of_local_completions(server):
    """Two questions of two answers each: the right one is likelier (loglikelihood, by echo)."""
    tokenizer = server.engine.get_tokenizer()
    questions = [("The capital of France is", " Paris", " Tokyo"),
                 ("The capital of Japan is", " Paris", " Tokyo")]  # fmt: skip
    prompts, starts = [], []
    for context, *answers in questions:
        for answer in answers:
            ids = tokenizer.encode(context + answer)
            prompts.append(ids)
            starts.append(len(tokenizer.encode(context)))
    with server.client() as client:
        body = {"model": "minivllm", "prompt": prompts, "max_tokens": 1, "logprobs": 1,
                "echo": True, "seed": 1234, "temperature": 0}  # fmt: skip
        choices = client.post("/v1/completions", json=body).json()["choices"]
        sums = []
        for choice, start in zip(choices, starts, strict=True):
            logprobs = choice["logprobs"]
            sums.append(sum(logprobs["token_logprobs"][start:-1]))
            assert len(logprobs["top_logprobs"]) == len(logprobs["tokens"])
        assert sums[0] > sums[1]
        assert sums[3] > sums[2]
        until = {"model": "minivllm", "prompt": [prompts[0][: starts[0]]], "max_tokens": 20,
                 "temperature": 0, "stop": [".", "\n"], "seed": 1234}  # fmt: skip
        answer = client.post("/v1/completions", json=until).json()
    assert answer["choices"][0]["text"] == " Paris"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_nothing_that_schemathesis_thinks_of_is_our_fault(server):
    assert_no_5xx(server.url)
    assert server.idle()
