"""Tool parsers, whole and piece by piece; their templates; the grammars that force calls."""

import json
import re
import warnings
from argparse import Namespace
from pathlib import Path
from random import Random

import jinja2
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm import embedded_model_path
from minivllm.config.structured_outputs import StructuredOutputsParams
from minivllm.engine.input_processor import load_tokenizer
from minivllm.entrypoints.openai import tool_parsers
from minivllm.entrypoints.openai.chat_completion.tool_choice import ToolChoice, ToolStream
from minivllm.entrypoints.openai.tool_parsers import ToolParser, ToolParserManager
from minivllm.structured_output.manager import StructuredOutputManager

FOLDER = Path(tool_parsers.__file__).parent
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a place",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location", "unit"],
    },
}
TOOLS = [WEATHER, {"name": "now"}]
NESTED = '{"a": {"b": [1, {"c": "}"}], "d": null}, "e": "\\u00e9 é 世界 🙂 \\"x\\""}'

# (parser, text, content, calls)
HERMES = [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', None, [("f", '{"a": 1}')]),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', None, [("f", "{}")]),
    ('<tool_call>{"arguments": {}, "name": "f"}</tool_call>', None, [("f", "{}")]),
    (f'Sure.\n<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>', "Sure.\n",
     [("f", NESTED)]),
    ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
     '{"name": "g", "arguments": {"x": [2]}}\n</tool_call>\n', None,
     [("f", "{}"), ("g", '{"x": [2]}')]),
    ('a<tool_call>{"name": "f", "arguments": {}}</tool_call> b <tool_call>{"name": "g", '
     '"arguments": {}}</tool_call> c', "a b  c", [("f", "{}"), ("g", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {"t": "</tool_call>"}}</tool_call>', None,
     [("f", '{"t": "</tool_call>"}')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}', None, [("f", '{"a": 1}')]),  # unclosed
    # broken: the text itself
    ('<tool_call>{"name": "f", "arguments": {"a": 1}', ..., []),
    ('<tool_call>{"name": "f", "arguments": {"a": "San Fr', ..., []),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', ..., []),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', ..., []),
    ('<tool_call>{"name": "f"}</tool_call>', ..., []),
    ('<tool_call>{"arguments": {}}</tool_call>', ..., []),
    ('<tool_call>{"name": "", "arguments": {}}</tool_call>', ..., []),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', ..., []),
    ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', ..., []),
    ('<tool_call>{name: "f", arguments: {}}</tool_call>', ..., []),
    ('<tool_call>["f"]</tool_call>', ..., []),
    ("<tool_call></tool_call>", ..., []),
    ("<tool_call>", ..., []),
    ("</tool_call> <tool", ..., []),
    ("5 < 6 and <b>", ..., []),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>{"na', " <tool_call>{\"na",
     [("f", "{}")]),
    ('<tool_call>{oops}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
     "<tool_call>{oops}</tool_call>", [("f", "{}")]),
    ("", ..., []),
    ("Hello!", ..., []),
]  # fmt: skip
LLAMA = [
    ('{"name": "f", "parameters": {"a": 1}}', None, [("f", '{"a": 1}')]),
    (f' <|python_tag|>{{"name": "f", "arguments": {NESTED}}}\n', None, [("f", NESTED)]),
    ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}} ;', None,
     [("f", "{}"), ("g", "{}")]),
    ('{"name": "f", "parameters": {}} and so on', " and so on", [("f", "{}")]),
    ('Hi {"name": "f", "parameters": {}}', ..., []),
    ('{"name": "f", "parameters": {}', ..., []),
    ('{"name": "f", "parameters": tru', ..., []),
    ('{"f": 1}', ..., []), ("{", ..., []), ("<|python", ..., []), ("{x} y {z}", ..., []),
]  # fmt: skip
MISTRAL = [
    ('[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}]', None, [("f", '{"a": [1]}')]),
    (f'Well [TOOL_CALLS] [{{"name": "f", "arguments": {NESTED}, "id": "x"}} , '
     '{"name": "g", "arguments": {}}]', "Well ", [("f", NESTED), ("g", "{}")]),
    ('[TOOL_CALLS]f{"a": "}"}[TOOL_CALLS]my.g[ARGS]{}', None,
     [("f", '{"a": "}"}'), ("my.g", "{}")]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {', ..., []), ("[TOOL_CALLS]", ..., []),
    ("[TOOL_CALLS]?!", ..., []), ('[TOOL_CALLS]f[ARGS]{"a"', ..., []), ("[TOOL_CALLS][]", ..., []),
    ('[TOOL_CALLS][{"name": "f"}]', ..., []), ("[1] [TOO", ..., []),
]  # fmt: skip
PYTHONIC = [
    ('[f(a=1, b="x]"), g()]', None, [("f", '{"a": 1, "b": "x]"}'), ("g", "{}")]),
    ("[m.f(a=[1, {'b': None}], c=true, d=-1.5, e='é')]", None,
     [("m.f", '{"a": [1, {"b": null}], "c": true, "d": -1.5, "e": "é"}')]),
    ("[f()] done", " done", [("f", "{}")]),
    ("[1] is a footnote", ..., []), ("[f(1)]", ..., []), ("[f(**x)]", ..., []), ("[f(a=", ..., []),
    ("[f(a=g())]", ..., []), ("Hi [f()]", ..., []), (" [f", ..., []),
]  # fmt: skip
CASES = [
    pytest.param(name, *case, id=f"{name} {i}")
    for name, cases in (
        ("hermes", HERMES), ("llama3_json", LLAMA), ("mistral", MISTRAL), ("pythonic", PYTHONIC)
    )
    for i, case in enumerate(cases)
]  # fmt: skip


def fed(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Content and whole calls that a stream of these pieces gives.

    A call that has begun and is none after all has arguments that are no JSON.
    """
    parser = ToolParserManager.get_tool_parser(name)()
    deltas = [d for piece in pieces for d in parser.extract_tool_calls_streaming(piece)]
    deltas += parser.finish()
    content, calls, ids = "", [], set()
    for delta in deltas:
        if isinstance(delta, str):
            assert delta
            content += delta
        elif delta.id is not None:
            assert delta.index == len(calls)
            assert delta.arguments == ""
            ids.add(delta.id)
            calls.append((delta.name, ""))
        else:
            assert delta.index == len(calls) - 1
            assert delta.arguments
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert len(ids) == len(calls)
    assert [i for i, (_, arguments) in enumerate(calls) if is_json(arguments)] == parser.whole
    return content, [calls[i] for i in parser.whole]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_what_a_text_calls(name, text, content, calls):
    found = ToolParserManager.get_tool_parser(name)().extract_tool_calls(text)
    assert found.tools_called == bool(calls)
    assert [(call.name, call.arguments) for call in found.tool_calls] == calls
    assert found.content == (text if content is ... else content)
    for call in found.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_fed_piece_by_piece_it_is_the_same(name, text, content, calls):
    wanted = (text if content is ... else content or "", calls)
    assert fed(name, [text]) == wanted
    assert fed(name, list(text)) == wanted
    for i in range(len(text)):
        assert fed(name, [text[:i], text[i:]]) == wanted
    rng = Random(0)
    for _ in range(30):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
        assert fed(name, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]) == wanted  # noqa: B905


def test_what_never_closes_takes_no_time_to_give_up():
    for name, text in [
        ("pythonic", "[" * 300 + "]" * 299), ("pythonic", "[" + "] " * 4000),
        ("hermes", '<tool_call>{"a": "' + "</tool_call>" * 2000),
        ("llama3_json", '{"a": ' * 2000 + "}" * 1999),
        ("mistral", "[TOOL_CALLS]" * 3000 + "[" * 2000),
    ]:  # fmt: skip
        assert fed(name, [text]) == (text, [])
        assert fed(name, [text[i : i + 3] for i in range(0, len(text), 3)]) == (text, [])


def joined(deltas) -> str:
    return "".join(d.arguments for d in deltas if not isinstance(d, str))


def test_nothing_waits_that_need_not():
    parser = ToolParserManager.get_tool_parser("hermes")()
    feed = parser.extract_tool_calls_streaming
    assert feed("Let me ") == ["Let me "]
    assert feed("see <to") == ["see "]
    assert feed("p") == ["<top"]
    assert feed('<tool_call>{"name": "f", "argum') == []
    name, first = feed('ents": {"a": ')
    assert (name.index, name.name, name.arguments) == (0, "f", "")
    assert name.id.startswith("chatcmpl-tool-")
    assert (first.index, first.id, first.name, first.arguments) == (0, None, None, '{"a": ')
    assert joined(feed("[1, ")) == "[1, "
    assert joined(feed('"San Fr')) == '"San Fr'
    assert joined(feed("\\u00")) == ""  # half an escape
    assert joined(feed('e9"]')) == '\\u00e9"]'
    assert joined(feed("}}")) == ""  # the last brace, and the call's own
    assert parser.whole == []
    assert joined(feed("\n</tool_call>")) == "}"
    assert parser.whole == [0]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>', NESTED),
        ("llama3_json", f'{{"name": "f", "parameters": {NESTED}}}', NESTED),
        ("mistral", f'[TOOL_CALLS][{{"name": "f", "arguments": {NESTED}}}]', NESTED),
        ("mistral", f"[TOOL_CALLS]f{NESTED}", NESTED),
    ],
)
def test_arguments_are_given_out_while_they_come(name, text, arguments):
    parser, given = ToolParserManager.get_tool_parser(name)(), ""
    begin = text.index(arguments)
    for i, char in enumerate(text):
        given += joined(parser.extract_tool_calls_streaming(char))
        here = arguments[: max(i + 1 - begin, 0)]
        assert here.startswith(given)
        if i < len(text) - 1:
            assert len(here) - len(given) <= 6  # an escape that is not whole, or the last brace
    assert given == arguments


def test_a_python_call_is_given_out_argument_by_argument():
    parser = ToolParserManager.get_tool_parser("pythonic")()
    pieces = ["[f(a=(1, 2)", ", b='x, y", "\\'', c=true", ")", "]"]
    given = [joined(parser.extract_tool_calls_streaming(piece)) for piece in pieces]
    assert given == ["", '{"a": [1, 2]', ', "b": "x, y\'"', ', "c": true', "}"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (r"'\d+'", '{"a": "\\\\d+"}'),
        (r"{'\w': ['\.']}", '{"a": {"\\\\w": ["\\\\."]}}'),
        ("1if 2else 3", None),
        ("0x1for x in y", None),
        ("1 is 1", None),
        ("'a'[1]", None),
    ],
)
def test_python_warns_of_no_models_text(source, found):
    parser = ToolParserManager.get_tool_parser("pythonic")()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        given = parser.extract_tool_calls(f"[f(a={source})]")
    assert not heard
    assert [call.arguments for call in given.tool_calls] == ([found] if found else [])


def test_what_began_as_a_call_and_is_none_comes_as_text_and_never_as_json():
    parser = ToolParserManager.get_tool_parser("hermes")()
    good = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    pieces = [
        "Well ",
        '<tool_call>{"name": "f", "arguments": {"a": {"b": 1}',
        "}} oh </tool_call>",
        good,
    ]
    found = [d for piece in pieces for d in parser.extract_tool_calls_streaming(piece)]
    assert "".join(d for d in found if isinstance(d, str)) == "".join(pieces[:3])
    calls = [d for d in found if not isinstance(d, str)]
    assert [(d.index, d.name, d.arguments) for d in calls] == [
        (0, "f", ""), (0, None, '{"a": {"b": 1}'), (1, "g", ""), (1, None, "{}")
    ]  # fmt: skip
    assert parser.whole == [1]
    cut = ToolParserManager.get_tool_parser("llama3_json")()
    first = cut.extract_tool_calls_streaming('{"name": "f", "parameters": {"a": "San')
    assert joined(first) == '{"a": "San'
    assert cut.finish() == ['{"name": "f", "parameters": {"a": "San']


def test_one_call_only_is_the_first_that_is_whole():
    args = Namespace(
        tool_strict_level="auto", enable_auto_tool_choice=True, tool_call_parser="hermes"
    )
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    one = '<tool_call>{{"name": "{}", "arguments": {{"a": 1}}}}{}</tool_call>'
    text = one.format("f", "!") + one.format("g", "") + one.format("h", "")
    choice = ToolChoice(tools, "auto", False, args)
    for pieces in (list(text), [text], [text[:60], text[60:]]):
        stream = ToolStream(choice)
        found = [d for piece in pieces for d in stream.deltas(piece, False)] + stream.deltas(
            "", True
        )
        arguments = dict.fromkeys(range(3), "")
        names = []
        for delta in found:
            for piece in delta.get("tool_calls", []):
                names += [piece["function"]["name"]] if "id" in piece else []
                arguments[piece["index"]] += piece["function"]["arguments"]
        whole = [call for call in arguments.values() if is_json(call)]
        assert whole == ['{"a": 1}']
        assert names[-1] == "g"
        assert stream.called
    content, calls, _ = choice.message(text, "stop")
    assert [c["function"]["name"] for c in calls] == ["g"]
    assert content == one.format("f", "!")


SCRAPS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "\n", " ", "; ",
    '{"name": "f", "arguments": ', '{"name": "f", "parameters": ', '{"a": "b', '{"a": 1}', "{}",
    "}", "]", "[", ",", ":", '"', "'", "\\", "\\u00", "f", "(", ")", "f(a=1)", "[f(", "a=", "1",
    "true", "-", "é", "<", "<to", "[TO",
]  # fmt: skip


@examples(300)
@given(st.sampled_from(["hermes", "llama3_json", "mistral", "pythonic"]),
       st.lists(st.sampled_from(SCRAPS), max_size=14))  # fmt: skip
def test_however_it_is_cut_it_comes_to_the_same(name, scraps):
    text = "".join(scraps)
    found = ToolParserManager.get_tool_parser(name)().extract_tool_calls(text)
    wanted = found.content or "", [(c.name, c.arguments) for c in found.tool_calls]
    assert fed(name, scraps) == fed(name, list(text)) == wanted
    if not found.tool_calls:
        assert found.content == text


def test_mistral_ids_are_nine_letters_and_digits():
    (call,) = (
        ToolParserManager.get_tool_parser("mistral")()
        .extract_tool_calls("[TOOL_CALLS]f{}")
        .tool_calls
    )
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_a_parser_of_ones_own():
    @ToolParserManager.register_module("shout")
    class Shout(ToolParser):
        opening = "DO "

        def read(self, text):
            yield from text.expect(self.opening)
            self.name_call((yield from text.run_of(re.compile("[a-z]*"))))
            yield from text.expect("!")
            self.add_arguments("{}", last=True)
            self.end_call()

    try:
        found = ToolParserManager.get_tool_parser("shout")().extract_tool_calls("ok DO it!")
        assert (found.content, found.tool_calls[0].name) == ("ok ", "it")
        assert fed("shout", list("DO x? DO y!D")) == ("DO x? D", [("y", "{}")])
    finally:
        del ToolParserManager.tool_parsers["shout"]
    with pytest.raises(ValueError, match="tool_call_parser must be one of hermes, llama3_json"):
        ToolParserManager.get_tool_parser("hermes2")
    with pytest.raises(ValueError, match="a subclass of ToolParser"):
        ToolParserManager.register_module("x")(int)


# -- templates ---------------------------------------------------------------------------------


def render(name: str, **variables) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(
        x, ensure_ascii=False, indent=indent
    )
    source = (FOLDER / f"tool_chat_template_{name}.jinja").read_text()
    defaults = {"tools": None, "bos_token": "<s>", "eos_token": "</s>"}
    defaults["add_generation_prompt"] = False
    return environment.from_string(source).render(**defaults | variables)


def message(role, content=None, **more):
    return {"role": role, "content": content, "tool_calls": None, "tool_call_id": None} | more


def call(name, arguments):
    return {"id": "abc123def", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "pythonic"])
def test_what_a_template_writes_its_parser_reads(name):
    arguments = {"location": 'a "b" {c}', "days": [1, 2], "deep": {"x": None, "y": True}}
    talk = [message("system", "Be brief."), message("user", "Hi")]
    called = [*talk, message("assistant", tool_calls=[call("get_weather", arguments),
                                                      call("now", {})])]  # fmt: skip
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    before, after = render(name, messages=talk, tools=tools), render(
        name, messages=called, tools=tools
    )  # fmt: skip
    assert after.startswith(before)
    assert '"get_weather"' in before
    assert "Be brief." in before
    text = after[len(before) :]
    for mark in ("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n"):
        text = text.removeprefix(mark)
    for mark in ("<|im_end|>\n", "<|eot_id|>", "</s>"):
        text = text.removesuffix(mark)
    found = ToolParserManager.get_tool_parser(name)().extract_tool_calls(text)
    assert found.content is None
    assert [(c.name, json.loads(c.arguments)) for c in found.tool_calls] == [
        ("get_weather", arguments), ("now", {})
    ]  # fmt: skip
    answered = [*called, message("tool", "sunny", tool_call_id="abc123def")]
    more = render(name, messages=answered, tools=tools, add_generation_prompt=True)
    assert more.startswith(after)
    assert "sunny" in more[len(after) :]
    plain = [*talk, message("assistant", "Hello."), message("user", "Bye")]
    assert "get_weather" not in render(name, messages=plain)
    assert "Hello." in render(name, messages=plain)


# -- forced calls ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manager():
    tokenizer = load_tokenizer(embedded_model_path())
    return StructuredOutputManager(tokenizer, 3157, frozenset([0, 2]))


def passes(manager, parser: str, text: str, special=None, strict=lambda tool: True, **choice):
    form = ToolParserManager.get_tool_parser(parser).form
    grammar = form.grammar(TOOLS, strict=strict, special_token_ids=special or {}, **choice)
    one = manager.compile_grammar(StructuredOutputsParams(grammar=grammar), {0, 2})
    return one.accept_tokens([*manager.tokenizer.encode(text), 2])


FORMS = {
    "hermes": '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>',
    "llama3_json": '{{"name": "{}", "parameters": {}}}',
    "mistral": '[TOOL_CALLS][{{"name": "{}", "arguments": {}}}]',
}
WHOLE = '{"location": "Rome", "unit": "celsius"}'


@pytest.mark.parametrize("parser", FORMS)
def test_the_grammar_of_a_forced_call(manager, parser):
    def check(text, wanted, **choice):
        assert passes(manager, parser, text, **choice) == wanted, text

    for forced in (True, False):
        for parallel in (True, False):
            choice = {"forced": forced, "parallel": parallel}
            good = FORMS[parser].format("get_weather", WHOLE)
            check(good, True, **choice)
            check(FORMS[parser].format("now", "{}"), True, **choice)
            bad = FORMS[parser].format("get_weather", '{"location": "Rome"}')
            check(bad, False, **choice)
            check(bad, True, strict=lambda tool: False, **choice)
            check(FORMS[parser].format("get_time", "{}"), False, **choice)
            check("Hello", not forced, **choice)
            check("", not forced, **choice)
            if parser != "llama3_json":  # that one has no trigger: it calls at once, or never
                check("Well: " + good, not forced, **choice)
                check("Well: " + bad, False, **choice)
    form = ToolParserManager.get_tool_parser(parser).form
    first, last = FORMS[parser].format("now", "{}"), FORMS[parser].format("get_weather", WHOLE)
    if parser == "mistral":
        first, last = first[:-1], last.removeprefix("[TOOL_CALLS][")
    two = first + form.separator + last
    check(two, True, forced=True, parallel=True)
    check(two, False, forced=True, parallel=False)
    found = ToolParserManager.get_tool_parser(parser)().extract_tool_calls(two)
    assert [c.name for c in found.tool_calls] == ["now", "get_weather"]


def test_a_special_token_opens_calls_by_its_id(manager):
    """The embedded model has <|im_start|> as a special token; let it be what Mistral's is."""
    from dataclasses import replace

    form = replace(ToolParserManager.get_tool_parser("mistral").form, trigger="<|im_start|>")
    for forced in (True, False):
        grammar = form.grammar(TOOLS, forced=forced, parallel=True, strict=lambda tool: True,
                               special_token_ids={"<|im_start|>": 1})  # fmt: skip
        params = StructuredOutputsParams(grammar=grammar)
        text = manager.tokenizer.encode('[{"name": "now", "arguments": {}}]')
        before = [] if forced else manager.tokenizer.encode("Well ")
        one = manager.compile_grammar(params, {0, 2})
        assert one.accept_tokens([*before, 1, *text, 2])
        one = manager.compile_grammar(params, {0, 2})
        assert not one.accept_tokens([*before, 1, *manager.tokenizer.encode("Well")])
