"""Facts about vLLM 0.32's server, beyond its recordings: what a request gets, field by field."""

import json
import math
from itertools import chain

import pytest
from http_recordings import events_of
from http_server import serving

from minivllm.entrypoints.openai.completion.protocol import CompletionRequest

HELLO = [{"role": "user", "content": "Hello"}]
TABLE = [
    {"role": "system", "content": "Answer questions about this table.\n\n| ID | Name | Age |\n"
     "|----|------|-----|\n| 1 | Ada Hart | 36 |\n| 2 | Ben Ortiz | 29 |\n"},
    {"role": "user", "content": "How old is Ben Ortiz?"},
]  # fmt: skip
PROMPT = "The capital of France is"
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object"}},
}
FOUND, REFUSED = "Bad Request", "BadRequestError"  # by the body's validation; by a check


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


def ask(client, **body):
    """The answer to a completion, or to a chat if there are messages."""
    chat = "messages" in body
    usual = {"temperature": 0, "max_tokens": 8} | ({} if chat else {"prompt": PROMPT})
    answer = client.post(f"/v1/{'chat/' * chat}completions", json=usual | body)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]
    return 200, events_of(answer.text) if body.get("stream") else answer.json()


def schema(value):
    return {"type": "json_schema", "json_schema": value}


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        # null where there is no default for it, and where there is one
        ({"n": None}, FOUND, "body.n"),
        ({"min_tokens": None}, FOUND, "body.min_tokens"),
        ({"bad_words": None}, FOUND, "body.bad_words"),
        ({"request_id": None}, FOUND, "body.request_id"),
        ({"messages": HELLO, "echo": None}, FOUND, "body.echo"),
        ({"messages": HELLO, "n": None}, None, None),
        ({"frequency_penalty": None, "presence_penalty": None, "echo": None}, None, None),
        # numbers of logprobs are no text, though other numbers may be
        ({"logprobs": "1"}, REFUSED, "logprobs"),
        ({"prompt_logprobs": "1"}, REFUSED, "prompt_logprobs"),
        ({"prompt_logprobs": []}, REFUSED, "prompt_logprobs"),
        ({"messages": HELLO, "top_logprobs": "1"}, REFUSED, "top_logprobs"),
        ({"max_tokens": "1"}, None, None),
        # who is named
        ({"prompt": [-1]}, FOUND, "body.prompt"),
        ({"prompt": "a" * 25_000}, REFUSED, "input_text"),
        ({"prompt": ["a"] * 1025}, REFUSED, "prompt"),
        ({"stop_token_ids": [99999]}, REFUSED, "stop_token_ids"),
        ({"bad_words": [""]}, REFUSED, None),
        ({"suffix": ""}, REFUSED, "suffix"),
        ({"messages": HELLO, "max_completion_tokens": 513}, REFUSED, "max_completion_tokens"),
        ({"stream_options": 5}, REFUSED, "stream_options"),
        ({"stream_options": {}}, None, None),
        ({"stream_interval": 0}, FOUND, "body.stream_interval"),
        ({"use_beam_search": True, "n": 2, "logprobs": 0}, REFUSED, "logprobs"),
        # salts get into the names of a cache's blocks
        ({"cache_salt": 5}, REFUSED, "cache_salt"),
        ({"cache_salt": "a" * 129}, REFUSED, "cache_salt"),
        ({"cache_salt": "a/b"}, REFUSED, "cache_salt"),
        ({"cache_salt": "a" * 128}, None, None),
        # the form of the answer
        ({"response_format": schema({})}, FOUND, "body.response_format"),
        ({"response_format": schema({"schema": {}})}, FOUND, "body.response_format"),
        ({"response_format": schema({"name": "x"})}, REFUSED, None),
        ({"response_format": {"type": "json_schema"}}, REFUSED, "response_format"),
        ({"structured_outputs": {}}, REFUSED, None),
        ({"structured_outputs": {"choice": "a"}}, FOUND, "body.structured_outputs"),
        ({"structured_outputs": {"choice": []}}, REFUSED, None),
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, REFUSED, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "grammar": 'root ::= "b"'}}, REFUSED, None),
        # fields that change nothing, and those that would need what is not here
        ({"session_id": 5}, FOUND, "body.session_id"),
        ({"session_id": "a", "watermarking": True, "vllm_xargs": {"a": [1, "b"]}}, None, None),
        ({"vllm_xargs": {"a": None}}, FOUND, "body.vllm_xargs"),
        ({"kv_transfer_params": 5}, FOUND, "body.kv_transfer_params"),
        ({"routed_experts_prompt_start": -1}, FOUND, "body.routed_experts_prompt_start"),
        ({"mm_payload": None}, FOUND, "body.mm_payload"),
        ({"prompt_embeds": "x"}, REFUSED, "prompt_embeds"),
        ({"prompt_embeds": []}, None, None),
        ({"thinking_token_budget": 0}, REFUSED, None),
        ({"thinking_token_budget": -1}, None, None),
        ({"repetition_detection": {"max_pattern_size": 3}}, REFUSED, None),
        ({"repetition_detection": {}, "logprob_token_ids": []}, None, None),
        ({"messages": HELLO, "media_io_kwargs": {"image": {}}}, REFUSED, "media_io_kwargs"),
        ({"messages": HELLO, "mm_processor_kwargs": {"a": 1}}, REFUSED, "mm_processor_kwargs"),
        ({"messages": HELLO, "mm_processor_kwargs": {}}, None, None),
        ({"messages": HELLO, "reasoning_effort": "x"}, FOUND, "body.reasoning_effort"),
        ({"messages": HELLO, "include_reasoning": None}, FOUND, "body.include_reasoning"),
        # so small a temperature is not 0, and n samples may differ
        ({"temperature": 1e-6, "n": 2}, None, None),
        ({"temperature": 0, "n": 2}, REFUSED, None),
        # messages
        ({"messages": [{"content": "x"}]}, FOUND, "body.messages"),
        ({"messages": [{"role": 5, "content": "x"}]}, FOUND, "body.messages"),
        ({"messages": [{"role": "user", "content": None}]}, FOUND, "body.messages"),
        ({"messages": [{"role": "user", "content": "x", "name": 5}]}, FOUND, "body.messages"),
        ({"messages": [{"role": "user", "content": [{"type": "?", "text": "x"}]}]}, REFUSED, None),
        ({"messages": [{"role": "user"}]}, None, None),
        ({"messages": [{"role": "assistant", "content": None}, *HELLO]}, None, None),
        ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]},
         None, None),
        ({"messages": [{"role": "user", "content": [
            {"type": "text", "text": None}, {"type": "text"}, {"type": "text", "text": "x"}]}]},
         None, None),
        ({"messages": [*HELLO, {"role": "assistant", "content": None, "refusal": None}, *HELLO]},
         None, None),
        # tools
        ({"messages": HELLO, "tools": [{}]}, FOUND, "body.tools"),
        ({"messages": HELLO, "tools": [{"type": "x", "function": {"name": "a"}}]},
         FOUND, "body.tools"),
        ({"messages": HELLO, "tool_choice": 5}, REFUSED, "tool_choice"),
        ({"messages": HELLO, "tools": [WEATHER], "tool_choice": {}},
         REFUSED, "tool_choice.function"),
        ({"messages": HELLO, "tools": [WEATHER], "tool_choice": {"function": {}}},
         REFUSED, "tool_choice.function.name"),
        ({"messages": HELLO, "tools": [WEATHER],
          "tool_choice": {"type": "x", "function": {"name": "get_weather"}}},
         FOUND, "body.tool_choice"),
        ({"messages": HELLO, "tools": [WEATHER], "tool_choice": None}, None, None),
        # what the template is told does not overrule the request's own fields
        ({"messages": HELLO, "chat_template_kwargs": {"add_generation_prompt": False}},
         None, None),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(client, body, kind, param):
    status, found = ask(client, **body)
    if kind is None:
        assert status == 200, found
    else:
        assert (status, found["type"], found["code"]) == (400, kind, 400), found
        named = found["param"] and ".".join(found["param"].split(".")[: 2 if kind == FOUND else 9])
        assert named == param, found


def test_a_refused_request_leaves_nothing_behind(server, client):
    for body in ({"cache_salt": "@"}, {"use_beam_search": True, "logprobs": 1}):
        assert ask(client, **body)[0] == 400
    assert server.idle()


@pytest.mark.parametrize(
    ("rank", "status"), [("0", 200), ("x", 200), ("", 200), ("--1", 200), ("1", 400), ("-1", 400)]
)
def test_there_is_one_engine_of_rank_0(client, rank, status):
    for path, body in (
        ("/completions", {"prompt": "x"}),
        ("/chat/completions", {"messages": HELLO}),
    ):
        headers = {"X-data-parallel-rank": rank}
        answer = client.post("/v1" + path, json=body | {"max_tokens": 1}, headers=headers)
        assert answer.status_code == status


def test_the_list_of_models_is_found_with_a_slash_too(client):
    answer = client.get("/v1/models/")
    assert answer.status_code == 307
    assert answer.headers["location"] == str(client.base_url.join("/v1/models"))


# -- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"messages": HELLO}])
def test_usage_in_every_event_begins_with_one_token(client, body):
    """Chat has one key more, and an event before the first token."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    for _ in range(8):  # however the engine's thread and the event loop race
        _, events = ask(client, **body, stream=True, stream_options=options, ignore_eos=True)
        usages = [event["usage"] for event in events[:-2]]
        assert {"completion_tokens_details"} & usages[0].keys() == (
            {"completion_tokens_details"} if body else set()
        )
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts[: 1 + bool(body)] == ([0, 1] if body else [1])
        assert counts == sorted(counts)
        assert counts[-1] == 8
        assert "completion_tokens_details" not in events[-2]["usage"]


def test_offsets_in_a_stream_are_of_tokens_not_of_the_text_given_out(client):
    """A text may be held back, since it could become a stop string; a special token has none."""
    for body in ({"stop": ["Par"]}, {"ignore_eos": True, "max_tokens": 12}):
        body |= {"logprobs": 1}
        _, whole = ask(client, **body)
        _, events = ask(client, **body, stream=True)
        pieces = [event["choices"][0]["logprobs"] for event in events[:-1]]
        offsets = [offset for piece in pieces for offset in piece["text_offset"]]
        assert offsets == whole["choices"][0]["logprobs"]["text_offset"]


def test_stream_interval_makes_fewer_events(client):
    _, one_by_one = ask(client, stream=True, ignore_eos=True, max_tokens=24, return_token_ids=True)
    _, events = ask(client, stream=True, ignore_eos=True, max_tokens=24, return_token_ids=True,
                    stream_interval=8)  # fmt: skip
    ids, ids_one_by_one = (
        [event["choices"][0]["token_ids"] for event in some[:-1]] for some in (events, one_by_one)
    )
    assert len(ids[0]) == 1
    assert len(ids) <= 5
    assert all(len(piece) >= 8 for piece in ids[1:-1])
    assert [*chain(*ids)] == [*chain(*ids_one_by_one)]


def test_an_empty_text_is_no_content_where_calls_are_parsed():
    with (
        serving("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server,
        server.client() as client,
    ):
        _, events = ask(client, messages=HELLO, stream=True, max_tokens=32)
        assert events[-2]["choices"][0]["delta"].get("content") != ""
        question = [{"role": "user", "content": "What's the weather like in San Francisco?"}]
        body = {"messages": question, "tools": [WEATHER], "max_tokens": 64}
        _, events = ask(client, **body, stream=True, tool_choice=None)  # as "auto"
        deltas = [event["choices"][0]["delta"] for event in events[1:-2]]
        assert deltas
        assert all(delta["content"] is None and delta["tool_calls"] for delta in deltas)


# -- whole answers -----------------------------------------------------------------------------


def test_a_chat_that_is_echoed_shows_the_prompts_logprobs(client):
    _, answer = ask(client, messages=HELLO, echo=True)
    assert [len(known or ()) for known in answer["prompt_logprobs"][:2]] == [0, 1]
    parts = [{"type": "text", "text": "Hi the"}]
    messages = [*HELLO, {"role": "assistant", "content": parts}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    _, answer = ask(client, messages=messages, **body)
    assert answer["choices"][0]["message"]["content"].startswith("Hi the")


def test_the_token_itself_is_the_first_of_its_top_logprobs(client):
    more = {"logprobs": True, "top_logprobs": 2, "logit_bias": {"511": 60}, "max_tokens": 1}
    _, answer = ask(client, messages=HELLO, **more)
    (token,) = answer["choices"][0]["logprobs"]["content"]
    assert [best["token"] for best in token["top_logprobs"]] == [" capital", "Hello"]
    assert token["logprob"] == token["top_logprobs"][0]["logprob"] < -10


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_prompt_that_was_cut_is_echoed_whole(client, as_ids):
    prompt = (
        client.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"] if as_ids else PROMPT
    )
    _, answer = ask(client, prompt=prompt, echo=True, truncate_prompt_tokens=3, max_tokens=1)
    assert answer["choices"][0]["text"].startswith(PROMPT)
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_one_token_has_no_logprob(client, stream):
    prompts = [[289], [511, 283]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 2, "stream": stream}
    status, found = ask(client, **body)
    assert status == 200
    for event in found[:-1] if stream else [found]:
        for choice in event["choices"]:
            known = choice["logprobs"]["token_logprobs"]
            assert (known[0] is None) == (choice["text"].startswith(("The", " capital")))
    if not stream:
        assert [len(choice["prompt_logprobs"]) for choice in found["choices"]] == [1, 2]


@pytest.mark.parametrize("max_tokens", [1, 4, None])
def test_truncating_to_fit_leaves_room_for_one_token(client, max_tokens):
    body = {"prompt": [289] * 600, "truncate_prompt_tokens": -1, "max_tokens": max_tokens}
    usage = ask(client, **body)[1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (511, 1)


@pytest.mark.parametrize("temperature", [0, 1, None])
def test_beams_end_at_the_tokenizers_token_alone(client, temperature):
    """``LLM.beam_search`` takes the model's other end-of-sequence token for one, too."""
    body = {"use_beam_search": True, "n": 2, "temperature": temperature, "return_token_ids": True}
    best = ask(client, **body)[1]["choices"][0]
    assert (best["text"], best["finish_reason"]) == (" Paris.", "length")
    assert best["token_ids"][3:] == [0] * 5  # <|endoftext|>, again and again
    shown = ask(client, **body, skip_special_tokens=False)[1]["choices"][0]["text"]
    assert shown == " Paris." + 5 * "<|endoftext|>"


def test_a_beam_that_is_complete_names_its_end(client):
    body = {"messages": TABLE, "use_beam_search": True, "n": 2, "max_tokens": 32,
            "return_token_ids": True}  # fmt: skip
    _, without = ask(client, **body)
    done = [choice for choice in without["choices"] if choice["finish_reason"] == "stop"]
    assert done
    assert all(choice["stop_reason"] == 2 for choice in done)
    assert all(2 not in choice["token_ids"] for choice in done)
    _, whole = ask(client, **body, include_stop_str_in_output=True)
    assert [c["token_ids"][-1] for c in whole["choices"] if c["finish_reason"] == "stop"] == [
        2
    ] * len(done)
    texts = [[c["message"]["content"] for c in answer["choices"]] for answer in (whole, without)]
    assert texts[0] == texts[1]
    _, events = ask(client, **body, stream=True)  # beams come at their end, each in one piece
    texts = {e["choices"][0]["index"]: e["choices"][0]["delta"]["content"] for e in events[2:-1]}
    assert texts == {c["index"]: c["message"]["content"] for c in without["choices"]}


def test_tools_reach_the_template_with_all_their_fields(client):
    """In the order of the fields, null included, ``strict`` only if it is said."""
    told = {"function": {"parameters": {"b": 1, "a": 2}, "name": "f"}, "unknown": 1}
    function = {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}}
    whole = {"type": "function", "function": function}
    counts = []
    for tool in (told, whole):
        body = {"messages": HELLO, "tools": [tool], "tool_choice": "none"}
        counts.append(ask(client, **body, return_token_ids=True)[1]["prompt_token_ids"])
        tokens = client.post("/tokenize", json={"messages": HELLO, "tools": [tool]}).json()
        assert tokens["tokens"] == counts[-1]
    assert counts[0] == counts[1]


def test_a_call_that_a_model_wrote_badly_does_not_end_the_conversation(client):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
    turn = {"role": "assistant", "tool_calls": [call]}
    body = {"messages": [*HELLO, turn, *HELLO], "tools": [WEATHER], "tool_choice": "none"}
    assert ask(client, **body)[0] == 200
    assert ask(client, messages=[*HELLO, turn | {"tool_calls": [5]}])[0] == 400
    assert ask(client, messages=[HELLO[0] | {"tool_calls": [5]}])[0] == 200  # a user calls nothing


def test_an_id_of_a_request_may_be_empty(client):
    assert ask(client, request_id="")[1]["id"] == "cmpl-"
    assert ask(client, messages=HELLO, request_id="")[1]["id"] == "chatcmpl-"
    body = {"prompt": PROMPT, "max_tokens": 1, "request_id": "mine"}
    answer = client.post("/v1/completions", json=body, headers={"x-request-id": ""})
    assert answer.json()["id"] == "cmpl-"


# -- tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": 5}, "body.prompt"),
        ({"messages": [{"content": "x"}]}, "body.prompt"),  # it is neither kind
        ({"prompt": "x", "add_special_tokens": None}, "body.add_special_tokens"),
        ({"prompt": "x", "messages": HELLO}, None),  # the conversation counts
    ],
)
def test_a_body_of_tokenize_is_of_one_kind(client, body, param):
    answer = client.post("/tokenize", json=body).json()
    if param is None:
        assert answer["count"] == 9
    else:
        assert (answer["error"]["type"], answer["error"]["param"]) == (FOUND, param)


@pytest.mark.parametrize(("token", "status"), [(3157, 200), (2**32 - 1, 200), (2**40, 400)])
def test_an_id_of_no_token_has_no_text(client, token, status):
    answer = client.post("/detokenize", json={"tokens": [token]})
    assert answer.status_code == status
    assert status != 200 or answer.json() == {"prompt": ""}


# -- flags -------------------------------------------------------------------------------------


def test_forced_usage_is_in_every_event_and_several_choices_have_no_times():
    flags = ["--enable-force-include-usage", "--enable-per-request-metrics"]
    with serving(*flags) as server, server.client() as client:
        for more in ({}, {"stream_options": {"include_usage": False}}):
            _, events = ask(client, stream=True, **more)
            assert all(event["usage"] for event in events[:-1])
        whole = ask(client)[1]["metrics"]
        assert whole is not None
        for body in ({}, {"messages": HELLO}):
            times = ask(client, stream=True, **body)[1][-2]["metrics"]
            assert set(times) == {name for name, value in whole.items() if value is not None}
            assert all(value >= 0 for value in times.values())
        one_token = ask(client, stream=True, max_tokens=1)[1][-2]["metrics"]
        assert "mean_itl_ms" not in one_token, "in this event nulls are left out"
        for several in ({"prompt": [PROMPT, PROMPT]}, {"n": 2, "temperature": 1}):
            assert "metrics" not in ask(client, stream=True, **several)[1][-2]
        assert ask(client, prompt=[PROMPT, PROMPT])[1]["metrics"] is None
        assert ask(client, n=2, temperature=1)[1]["metrics"] is None


def test_chat_tells_what_it_added_to_the_cache():
    flags = ["--enable-prompt-tokens-details", "--api-key", "key"]
    long = [{"role": "user", "content": "one two three four five six seven " * 12}]
    with serving(*flags) as server, server.client() as client:
        assert client.get("/v2/nothing").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer  key"}).status_code == 401
        client.headers["Authorization"] = "Bearer key"
        client.headers["X-Vllm-Priority"] = "high"  # not a number: the body's counts
        seen = [ask(client, messages=long)[1]["usage"] for _ in range(2)]
        whole = seen[0]["prompt_tokens"] // 32 * 32
        assert whole > 0
        details = [usage["prompt_tokens_details"] for usage in seen]
        assert [d["created_cache_tokens"] for d in details] == [whole, 0]
        assert [d["cached_tokens"] for d in details] == [0, whole]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        in_chat = {"cached_tokens", "created_cache_tokens"}
        for body, names in (({}, {"cached_tokens"}), ({"messages": long}, in_chat)):
            usage = ask(client, **options, **body)[1][-2]["usage"]
            assert set(usage["prompt_tokens_details"]) == names, "without nulls"
        assert ask(client)[1]["usage"]["prompt_tokens_details"]["created_cache_tokens"] is None


def test_where_calls_are_parsed_no_text_is_no_event():
    """Text that is held back makes no event, unless its tokens are to be shown."""
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    body = {"messages": HELLO, "max_tokens": 6, "stop": ["Hello! How may"], "stream": True}
    with serving(*flags) as server, server.client() as client:
        for more in ({}, {"tools": [WEATHER]}):
            _, events = ask(client, **body, **more)
            deltas = [event["choices"][0]["delta"] for event in events[1:-1]]
            assert all(deltas[:-1]), "the last may have nothing but the end"
            assert 1 <= len(deltas) < 6
            _, events = ask(client, **body, **more, return_token_ids=True)
            shown = [event["choices"][0] for event in events[1:-1]]
            assert sum(len(choice["token_ids"]) for choice in shown) == 6
            assert {} in [choice["delta"] for choice in shown]
        whole = "".join(delta.get("content", "") for delta in deltas)
        del body["stream"], body["stop"]
        assert ask(client, **body)[1]["choices"][0]["message"]["content"] == whole


def test_an_echo_beside_a_call_is_a_text():
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    question = [{"role": "user", "content": "What's the weather like in San Francisco?"}]
    body = {"messages": question, "tools": [WEATHER], "max_tokens": 64}
    with serving(*flags) as server, server.client() as client:
        contents = [
            ask(client, **body, echo=echo)[1]["choices"][0]["message"]["content"]
            for echo in (False, True)
        ]
        assert contents == [None, ""]
        # a call's last piece ends its choice, if the last token is a part of it
        _, events = ask(client, **body, stream=True, stop=["</tool_call>"])
        last = events[-2]["choices"][0]
        assert last["finish_reason"] == "tool_calls"
        assert last["delta"]["tool_calls"]


def test_the_metrics_are_in_the_schema(client):
    assert "get" in json.loads(client.get("/openapi.json").text)["paths"]["/metrics"]


def test_biases_are_clipped_as_in_vllm():
    """JSON has no NaN, but clients write it; vLLM's comparisons make it the smallest bias."""
    given = {"1": math.nan, "2": math.inf, "3": -math.inf, "4": 5.5, "5": -101}
    request = CompletionRequest(prompt="a", logit_bias=given)
    assert request._token_biases() == {1: -100, 2: 100, 3: -100, 4: 5.5, 5: -100}
