"""SmolLM2 behind the server, asked with OpenAI's own client."""

import json
from itertools import takewhile

import openai
import pytest
from http_server import serving

BLOCK_SIZE = 16
TURNS = (
    "Hi! My name is Ada.", "What is the capital of France?", "And of Italy?",
    "Name three fruits.", "Write a short poem about the sea.", "Thanks. What is 2 + 3?",
    "Write a Python function that adds two numbers.", "你好!", "What did I ask first?", "Goodbye!",
)  # fmt: skip
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"enum": ["Python", "C", "Rust"]}, "maxItems": 3},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
SAYINGS = ["你好,世界!🙂", "👩‍💻🏽 émoji 🇫🇷 — 漢字かな交じり文", "🎉🎊🥳🎈"]


@pytest.fixture(scope="module")
def client(smollm2):
    words = ("--dtype", "float32", "--max-model-len", "2048", "--block-size", str(BLOCK_SIZE),
             "--served-model-name", "smollm2", "--enable-prompt-tokens-details",
             "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
             "--tool-strict-level", "parameter")  # fmt: skip
    with (
        serving(str(smollm2), *words) as server,
        openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1", timeout=300) as client,
    ):
        yield client


def ask(client, messages, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    options = {"max_tokens": 48, "temperature": 0, **options}
    return client.chat.completions.create(model="smollm2", messages=messages, **options)


def streamed(client, messages, **options):
    """The pieces of an answer."""
    chunks = list(ask(client, messages, stream=True, **options))
    return [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]


def test_each_of_ten_turns_hits_what_it_must(client):
    """Full blocks that an earlier turn has computed, and never the whole prompt."""
    messages, computed = [], []
    for text in TURNS:
        messages.append({"role": "user", "content": text})
        chat = ask(client, messages, extra_body={"return_token_ids": True})
        answer, prompt = chat.choices[0], chat.prompt_token_ids
        assert chat.usage.prompt_tokens == len(prompt)
        pairs = zip(computed, prompt[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        details = chat.usage.prompt_tokens_details
        hit = 0 if details is None else details.cached_tokens
        assert hit == common // BLOCK_SIZE * BLOCK_SIZE
        if messages[1:]:
            assert hit > len(prompt) - 150  # nearly all: the last answer and the new question
        computed = [*prompt, *answer.token_ids][:-1]  # the last token was drawn, not computed
        messages.append({"role": "assistant", "content": answer.message.content})
    assert "Paris" in messages[3]["content"]


def test_a_stream_says_what_the_answer_says(client):
    whole = ask(client, "What is the capital of France?").choices[0].message.content
    assert "".join(streamed(client, "What is the capital of France?")) == whole
    assert "Paris" in whole


def test_a_json_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    text = "Alice is 31 years old and writes Python and Rust. Answer in JSON."
    options = {"response_format": form, "max_tokens": 120}
    chat = ask(client, text, **options)
    assert chat.choices[0].finish_reason == "stop"
    person = json.loads(chat.choices[0].message.content)
    assert list(person) == ["name", "age", "languages"]
    assert (person["name"].split()[0], person["age"]) == ("Alice", 31)
    assert set(person["languages"]) <= {"Python", "C", "Rust"}
    assert "".join(streamed(client, text, **options)) == chat.choices[0].message.content


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_tool_call(choice, client):
    text = "What is the weather in Paris, in celsius?"
    chat = ask(client, text, tools=[WEATHER], tool_choice=choice, max_tokens=400)
    assert chat.choices[0].finish_reason != "length"
    calls = chat.choices[0].message.tool_calls  # "required" lets the model make several
    for call in calls:
        assert call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"city", "unit"}
        assert arguments["unit"] in ("celsius", "fahrenheit")
    assert len(calls) == 1 or choice == "required"


@pytest.mark.parametrize("saying", SAYINGS)
def test_a_stream_of_characters_of_many_tokens(saying, client):
    """Each has several tokens, and no piece of a stream ends inside one."""
    only = {"structured_outputs": {"choice": [saying]}}
    pieces = streamed(client, "Say it.", extra_body=only, max_tokens=100)
    assert "".join(pieces) == saying
    assert len(pieces) > 2
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("text", ["Translate to Chinese: good morning", "Repeat: 🙂🎉🚀🐱"])
def test_a_free_stream_is_the_whole_text(text, client):
    options = {"temperature": 1, "seed": 5}
    whole = ask(client, text, **options).choices[0].message.content
    pieces = streamed(client, text, **options)
    assert "".join(pieces) == whole
    assert not any("\ufffd" in piece for piece in pieces[:-1])
