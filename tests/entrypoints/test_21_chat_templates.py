"""Input of a chat template: parts or text, one system message, a request's other fields."""

import pytest
from http_server import serving
from transformers import AutoTokenizer

from minivllm import embedded_model_path
from minivllm.entrypoints.chat_content_format import detect_content_format
from minivllm.entrypoints.chat_messages import template_messages
from minivllm.entrypoints.chat_utils import apply_chat_template

LOOP = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
ALIAS = ("{% set rest = messages[1:] %}{% for m in rest | list %}"
         "{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}")  # fmt: skip
MACRO = "{% macro show(x) %}{% for c in x %}{{ c }}{% endfor %}{% endmacro %}"
USER = {"role": "user", "content": "Hi"}


def system(text, role="system"):
    return {"role": role, "content": text}


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (LOOP, "openai"),
        (ALIAS, "openai"),
        (MACRO + "{% for m in messages %}{{ show(m.content) }}{% endfor %}", "openai"),
        (MACRO + "{% for m in messages %}{{ show(x=m['content']) }}{% endfor %}", "openai"),
        (MACRO + "{% for m in messages %}{{ show(m.tool_calls) }}{% endfor %}", "string"),
        ("{% for m in messages %}{% set content = m.content %}"
         "{% for c in content %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.content[:1] if c.type %}x{% endfor %}{% endfor %}",
         "openai"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
         "string"),
        ("{% for m in messages %}{% continue %}{{ m.content | trim }}{% endfor %}", "string"),
        ("{% for m in others %}{% for c in m.content %}x{% endfor %}{% endfor %}", "string"),
        ("{% for m, n in messages %}{{ m }}{% endfor %}", "string"),
        ("{% if %}", "string"),
    ],
)  # fmt: skip
def test_the_format_is_found_in_the_template(template, found):
    assert detect_content_format(template) == found


def test_parts_reach_a_template_that_loops_over_them():
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())

    def shown(messages, **options):
        return apply_chat_template(tokenizer, messages, LOOP, **options)

    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert shown([{"role": "user", "content": parts}]) == "[a][b]"
    assert shown([USER]) == "[Hi]"
    assert shown([USER], chat_template_content_format="string") == "[][]"
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    assert shown([{"role": "assistant", "content": None, "tool_calls": calls}]) == ""
    with pytest.raises(ValueError, match="chat_template_content_format must be one of auto, "):
        shown([USER], chat_template_content_format="parts")


def test_what_a_tool_says_is_text_in_either_format():
    tool = {
        "role": "tool",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    for form in ("string", "openai"):
        assert template_messages([tool], LOOP, form)[0]["content"] == "a\nb"


A, B = {"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}
NULLS = [{"type": "text"}, {"type": "text", "text": None}, {"type": "refusal", "refusal": None},
         {"type": "refusal"}]  # fmt: skip


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        *(([A, null, B], ["a", "b"]) for null in NULLS),
        ([*NULLS, A], ["a"]),
        (NULLS, []),
        ([], []),
        ("", [""]),
        (["Hello"], ["Hello"]),
        (("Hello", A, ""), ["Hello", "a", ""]),
        ([A, {"type": "text", "text": ""}, B], ["a", "", "b"]),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"},
          {"type": "thinking", "thinking": "c"}], ["a", "b", "c"]),
    ],
)  # fmt: skip
def test_parts_without_a_text_are_skipped_as_in_vllm(role, parts, texts):
    """A part that is null is none; one that is empty adds no line to a text."""
    message = {"role": role, "content": parts}
    (shown,) = template_messages([message], "{{ 'developer' }}", "string")
    assert shown["content"] == "\n".join(filter(None, texts))
    (shown,) = template_messages([message], "{{ 'developer' }}", "openai")
    if role != "tool":  # whose result is a text in either format
        assert shown["content"] == [{"type": "text", "text": text} for text in texts]
    else:
        assert shown["content"] == "\n".join(filter(None, texts))


def test_a_null_part_leaves_no_blank_line_in_a_prompt():
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    for null in NULLS:
        messages = [{"role": "user", "content": [null, A, null, B]}]
        prompt = apply_chat_template(tokenizer, messages)
        assert prompt == apply_chat_template(tokenizer, [system("a\nb", "user")])
    nothing = {"role": "assistant", "content": None, "refusal": None}
    assert "None" not in apply_chat_template(tokenizer, [USER, nothing, USER])


@pytest.mark.parametrize(
    "part",
    [{}, {"text": "a"}, {"type": "?", "text": "a"}, {"type": ["text"], "text": "a"}, None, 5,
     {"type": "image_file", "text": "a"}, {"type": "thinking", "thinking": None}, "\ud800",
     {"type": "input_text"}, {"type": "text", "text": 5}],
)  # fmt: skip
def test_a_part_that_is_no_text_is_refused(part):
    with pytest.raises(ValueError, match="a message's content must be text, or a list of text"):
        template_messages([{"role": "user", "content": [A, part]}], LOOP, "string")


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([system("a", "developer"), USER], [system("a"), USER]),
        ([system("a"), system("b", "developer"), USER], [system("a\n\nb"), USER]),
        ([USER, system("b", "developer")], [system("b"), USER]),
        ([system("", "developer"), system("x"), USER], [system("x"), USER]),
        ([system("a"), USER, system("b")], [system("a"), USER, system("b")]),  # as they are
    ],
)
def test_developers_and_the_system_are_one_message_and_first(messages, shown):
    assert template_messages(messages, "{{ messages }}", "string") == shown
    assert template_messages(messages, "{{ 'developer' }}", "string") == messages


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        *((none, {}) for none in ("{bad", "[]", "null", "", None, 5, "[" * 100_000)),
    ],
)
def test_the_arguments_of_a_call_are_an_object(written, read):
    call = {"id": "x", "function": {"name": "f", "arguments": written}}
    (message,) = template_messages([{"role": "assistant", "tool_calls": [call]}], LOOP, "string")
    assert message["tool_calls"] == [{"id": "x", "function": {"name": "f", "arguments": read}}]


@pytest.mark.parametrize("call", [5, {}, {"function": 5}, {"type": "custom", "function": {}}])
def test_a_call_is_of_a_function(call):
    with pytest.raises(ValueError, match="every one of tool_calls must be"):
        template_messages([{"role": "assistant", "tool_calls": [call]}], LOOP, "string")


def test_reasoning_has_both_its_names_and_no_calls_are_no_key():
    for name in ("reasoning", "reasoning_content"):
        message = {"role": "assistant", "tool_calls": [], name: "r", "content": "x"}
        (shown,) = template_messages([message], "", "string")
        assert shown == {
            "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r",
        }  # fmt: skip
        assert list(shown)[:2] == ["role", "content"]


TOLD = "/".join(
    f"{{{{ {one} }}}}"
    for one in ("reasoning_effort", "enable_thinking", "documents", "tools | d([], true) | length")
)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({}, "//None/0"),
        ({"reasoning_effort": "low"}, "low/True/None/0"),
        ({"reasoning_effort": "none"}, "none/False/None/0"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
         "low/False/None/0"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}},
         "low/True/None/0"),
        ({"chat_template_kwargs": {"reasoning_effort": "x", "documents": [{}]}}, "x//[{}]/0"),
        ({"chat_template_kwargs": {"documents": [{}]}, "documents": []}, "//[]/0"),
        ({"chat_template_kwargs": {"tools": [{"a": "b"}]}}, "//None/1"),
    ],
)  # fmt: skip
def test_what_a_request_tells_its_template(trusting, body, shown):
    body = {"messages": [USER], "max_tokens": 1, "chat_template": TOLD} | body
    answer = trusting.post("/v1/chat/completions", json=body | {"return_prompt_text": True})
    assert answer.json()["prompt_text"] == shown


@pytest.fixture(scope="module")
def trusting():
    flags = [
        "--trust-request-chat-template", "--chat-template-content-format", "openai",
        "--default-chat-template-kwargs", '{"mood": "calm"}',
    ]  # fmt: skip
    with serving(*flags) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(
    ("body", "shown"), [({}, "calm"), ({"chat_template_kwargs": {"mood": "glad"}}, "glad")]
)
def test_a_server_may_tell_a_template_more_unless_a_request_does(trusting, body, shown):
    body = {"messages": [USER], "chat_template": "{{ mood }}", "return_token_strs": True} | body
    assert "".join(trusting.post("/tokenize", json=body).json()["token_strs"]) == shown


def test_a_server_may_be_told_the_format(trusting):
    body = {"messages": [USER], "chat_template": "{{ messages[0].content[0].type }}"}
    told = trusting.post("/tokenize", json=body | {"return_token_strs": True}).json()
    assert "".join(told["token_strs"]) == "text"
