"""Tools over HTTP: choices, streams, strictness and refusals, asked with OpenAI's own client."""

import json
import re
from pathlib import Path

import pytest
from http_server import serving
from openai import BadRequestError, OpenAI

from minivllm import LLM, SamplingParams, embedded_model_path
from minivllm.entrypoints.chat_utils import load_chat_template
from minivllm.entrypoints.openai.chat_completion.tool_choice import ToolChoice
from minivllm.entrypoints.openai.cli_args import parse_args

pytestmark = pytest.mark.slow

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "City and state, e.g., 'San Francisco, CA'",
                },
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location", "unit"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = [{"role": "user", "content": "What's the weather like in San Francisco?"}]
WITHOUT_UNIT = '{"location": "San Francisco"}'
WITH_UNIT = '{"location": "San Francisco", "unit": "celsius"}'


@pytest.fixture(scope="module")
def client_of():
    """By command line: a client of a server that runs so; one at a time."""
    running = {}

    def of(*words):
        if words not in running:
            close()
            context = serving("--dtype", "float32", *words)
            server = context.__enter__()
            client = OpenAI(base_url=f"{server.url}/v1", api_key="dummy", max_retries=0)
            running[words] = context, client
        return running[words][1]

    def close():
        for context, client in running.values():
            client.close()
            context.__exit__(None, None, None)
        running.clear()

    yield of
    close()


LENIENT = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
STRICT = (*LENIENT, "--tool-strict-level", "parameter")


def ask(client, **options):
    """Content, calls and finish reason: whole, and put together from a stream."""
    options = {"messages": QUESTION, "tools": [WEATHER], "temperature": 0, "max_tokens": 64,
               "model": "minivllm", **options}  # fmt: skip
    choice = client.chat.completions.create(**options).choices[0]
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    whole = choice.message.content, calls, choice.finish_reason
    content, streamed, ids, reason = "", [], [], None
    for event in client.chat.completions.create(**options, stream=True):
        delta = event.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or []:
            if piece.id:
                assert piece.function.arguments == ""
                assert (piece.index, piece.type) == (len(streamed), "function")
                ids.append(piece.id)
                streamed.append((piece.function.name, ""))
            else:
                name, so_far = streamed[piece.index]
                streamed[piece.index] = (name, so_far + piece.function.arguments)
        assert reason is None
        reason = event.choices[0].finish_reason
    assert len(set(ids)) == len(streamed)
    streamed = [call for call in streamed if is_json(call[1])]  # not those that are cut
    assert (content, streamed, reason) == (whole[0] or "", calls, whole[2])
    return whole


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("flags", [LENIENT, STRICT])
def test_the_choices(client_of, flags):
    client, arguments = client_of(*flags), WITH_UNIT if flags is STRICT else WITHOUT_UNIT
    call = [("get_weather", arguments)]
    assert ask(client) == (None, call, "tool_calls")
    assert ask(client, tool_choice="auto") == (None, call, "tool_calls")
    assert ask(client, tool_choice="required") == ("", call, "tool_calls")
    assert ask(client, tool_choice=NAMED) == ("", call, "stop")
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {WITHOUT_UNIT}}}\n</tool_call>'
    assert ask(client, tool_choice="none") == (text, [], "stop")
    small_talk = [{"role": "user", "content": "Hello"}]
    said = "Hello! How can I help you today?"
    assert ask(client, messages=small_talk) == (said, [], "stop")
    if flags is STRICT:
        content, calls, _ = ask(client, messages=small_talk, tool_choice="required")
        assert content == ""
        assert json.loads(calls[0][1]).keys() == {"location", "unit"}


def test_a_tool_that_says_strict_is_held_to_its_schema(client_of):
    client = client_of(*LENIENT)
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    for choice in ("auto", "required", NAMED):
        assert ask(client, tools=[strict], tool_choice=choice)[1] == [("get_weather", WITH_UNIT)]


def test_a_call_that_is_cut_is_text(client_of):
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San'
    content, calls, reason = ask(client_of(*LENIENT), max_tokens=16)
    assert (calls, reason) == ([], "length")
    assert text.startswith(content[:40])
    assert content.startswith("<tool_call>")


def test_a_call_of_30_tokens_takes_at_most_12_steps():
    """Tokens that the grammar forces are drafted: jump-forward. The text is the same without."""
    lookup = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1}
    lookup["prompt_lookup_max"] = 3
    drafting = LLM(embedded_model_path(), dtype="float32", trace=True, speculative_config=lookup)
    plain = LLM(embedded_model_path(), dtype="float32", trace=True)
    args = parse_args(["--dtype", "float32", *STRICT])
    for choice in ("auto", "required", NAMED):
        outputs, steps = [], []
        for llm in (drafting, plain):
            params = SamplingParams(temperature=0, max_tokens=64)
            params = ToolChoice([WEATHER], choice, True, args).constrain(
                params, llm.get_tokenizer()
            )
            before = llm.trace.num_steps
            (output,) = llm.chat(QUESTION, params, tools=[WEATHER], use_tqdm=False)
            outputs.append(output.outputs[0].token_ids)
            steps.append(llm.trace.num_steps - before)
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) == steps[1] == 30
        assert steps[0] <= 12


def test_a_call_is_streamed_while_it_is_written(client_of):
    """The name comes long before the end, and arguments in several pieces, token by token."""
    client = client_of(*LENIENT)
    stream = client.chat.completions.create(
        model="minivllm", messages=QUESTION, tools=[WEATHER], temperature=0, stream=True,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    tokens, named_at, pieces = 0, None, []
    for event in stream:
        choice = event.choices[0]
        tokens += len(choice.model_extra.get("token_ids") or [])
        for piece in choice.delta.tool_calls or []:
            if piece.function.name:
                named_at = tokens
            else:
                pieces.append((tokens, piece.function.arguments))
    assert named_at <= tokens - 8
    assert len({at for at, _ in pieces}) > 3
    assert "".join(words for _, words in pieces) == WITHOUT_UNIT


def test_the_whole_exchange(client_of):
    """The model calls, the program runs the function, the model says what came out."""
    client = client_of(*STRICT)
    asked = {"model": client.models.list().data[0].id, "tools": [WEATHER], "tool_choice": "auto",
             "temperature": 0}  # fmt: skip
    first = client.chat.completions.create(messages=QUESTION, **asked).choices[0].message
    call = first.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"location", "unit"}
    assert re.fullmatch("chatcmpl-tool-[0-9a-f]{32}", call.id)
    answer = {"role": "tool", "tool_call_id": call.id,
              "content": '{"temperature": 20, "condition": "sunny"}'}  # fmt: skip
    talk = [*QUESTION, first.model_dump(exclude_none=True), answer]
    last = client.chat.completions.create(messages=talk, **asked).choices[0].message
    assert last.content == "It is 20 degrees celsius and sunny in San Francisco."


def test_beside_tools_tokens_and_logprobs_are_told_once(client_of):
    client = client_of(*LENIENT)
    options = {"model": "minivllm", "messages": QUESTION, "tools": [WEATHER], "temperature": 0,
               "logprobs": True, "extra_body": {"return_token_ids": True}}  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0]
    ids, tokens = [], []
    for event in client.chat.completions.create(**options, stream=True):
        choice = event.choices[0]
        ids += choice.model_extra.get("token_ids") or []
        tokens += [] if choice.logprobs is None else [t.token for t in choice.logprobs.content]
    assert ids == whole.model_extra["token_ids"]
    assert tokens == [t.token for t in whole.logprobs.content]


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"tools": []}, "tools", "at least one tool"),
        ({"tools": [{"type": "function", "function": {}}]}, "body.tools", "function.name: Field"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "body.tools", "at least 1"),
        ({"tools": [{"type": "retrieval"}]}, "body.tools", "should be 'function'"),
        ({"tool_choice": "always"}, "tool_choice", '"none", "auto" or "required"'),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", '"name": "my_function"'),
        ({"tool_choice": {"function": {"name": "f"}}}, "tool_choice", "none of"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, None,
         "leave out the other"),
        ({"tool_choice": "required", "extra_body": {"use_beam_search": True}}, None, "beams"),
        ({"tools": [{**WEATHER, "function": {"name": "f", "strict": True,
                     "parameters": {"properties": {"a": {"not": {}}}}}}]}, None, "Unimplemented"),
        ({"tools": [{**WEATHER, "function": {"name": "f", "strict": True,
                     "parameters": {"minimum": 10**400}}}]}, "tools", "finite as floats"),
    ],
)  # fmt: skip
def test_what_is_refused(client_of, options, param, words):
    client = client_of(*LENIENT)
    options = {"messages": QUESTION, "tools": [WEATHER], "model": "minivllm"} | options
    for stream in (False, True):
        with pytest.raises(BadRequestError, match=words) as caught:
            client.chat.completions.create(**options, stream=stream)
        assert caught.value.param == param


def test_what_a_server_without_a_parser_says(client_of):
    client = client_of("--exclude-tools-when-tool-choice-none")
    for choice, words in (("auto", "requires --enable-auto"), ("required", "--tool-call-parser"),
                          (NAMED, "--tool-call-parser")):  # fmt: skip
        with pytest.raises(BadRequestError, match=words):
            client.chat.completions.create(messages=QUESTION, tools=[WEATHER], model="minivllm",
                                           tool_choice=choice)  # fmt: skip
    hidden = client.chat.completions.create(messages=QUESTION, tools=[WEATHER], model="minivllm",
                                            tool_choice="none")  # fmt: skip
    plain = client.chat.completions.create(messages=QUESTION, model="minivllm")
    assert hidden.usage.prompt_tokens == plain.usage.prompt_tokens


def test_structured_outputs_over_http(client_of):
    client = client_of(*LENIENT)
    said = "Extract name and age as JSON: Maria is 34."
    options = {"model": "minivllm", "messages": [{"role": "user", "content": said}],
               "temperature": 0, "max_tokens": 60}  # fmt: skip

    def text(**more):
        return client.chat.completions.create(**options, **more).choices[0].message.content

    assert isinstance(json.loads(text(response_format={"type": "json_object"})), dict)
    regex = {"structured_outputs": {"regex": r"\d{3}-\d{4}"}}
    assert re.fullmatch(r"\d{3}-\d{4}", text(extra_body=regex))
    for body, param, words in [
        ({"structured_outputs": {"regex": "("}}, None, "regex must be a regular expression"),
        ({"structured_outputs": {"rgx": "a"}}, None, "did you mean 'regex'"),
        ({"structured_outputs": {}}, None, "must use one kind"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         None, "only use one kind"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format",
         "use a grammar"),
        ({"use_beam_search": True, "response_format": {"type": "json_object"}}, None, "beams"),
    ]:  # fmt: skip
        with pytest.raises(BadRequestError, match=words) as caught:
            text(extra_body=body)
        assert caught.value.param == param


def test_an_engine_in_another_process_does_it_too(client_of):
    client = client_of(*LENIENT, "--engine-process")
    assert ask(client, tool_choice=NAMED) == ("", [("get_weather", WITHOUT_UNIT)], "stop")
    regex = {"structured_outputs": {"regex": r"\d{3}-\d{4}"}}
    said = client.completions.create(model="minivllm", prompt="Call", extra_body=regex)
    assert re.fullmatch(r"\d{3}-\d{4}", said.choices[0].text)
    regex = {"structured_outputs": {"regex": "("}}
    with pytest.raises(BadRequestError, match="regular expression"):
        client.completions.create(model="minivllm", prompt="Call", extra_body=regex)


def test_flags_and_templates(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--enable-auto-tool-choice"])
    assert "needs --tool-call-parser" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_args(["--tool-call-parser", "hermes2"])
    name = "examples/tool_chat_template_llama3_json.jinja"
    assert "llama3_json" in load_chat_template(name)
    assert load_chat_template(Path(name)) == load_chat_template(name)
    with pytest.raises(ValueError, match="looks like a file's path"):
        load_chat_template("examples/tool_chat_template_llama4.jinja")
