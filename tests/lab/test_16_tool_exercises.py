"""Notebook 16's exercises, its lab and its figure: right solutions, wrong ones told why."""

import inspect
from argparse import Namespace
from xml.etree import ElementTree

import pytest

from minivllm import SamplingParams, embedded_model_path
from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.requests import make_request
from minivllm.course.ch16 import lab_tool_stream
from minivllm.course.grading import milestones
from minivllm.engine.input_processor import load_tokenizer
from minivllm.entrypoints.openai.chat_completion.tool_choice import ToolChoice
from minivllm.entrypoints.openai.tool_parsers import HermesToolParser
from minivllm.exercises import ch16, labs
from minivllm.lab.sim import dry_run
from minivllm.lab.sim.loop import fake_tokens
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.trace.records import Scheduled
from minivllm.viz import call_stream

NONSENSE = ["x", "", -1, 0, 10**9, [], {}, None.__class__, 2.5, (1,), lambda *given: 1, {"A": 1}]
MAKERS = [ch16.deltas, ch16.promises, ch16.rounds]


@pytest.mark.parametrize("make", MAKERS)
def test_every_seed_has_a_problem_and_a_solution(make):
    exercises = [make(seed) for seed in range(30)]
    assert len({repr(exercise.given) for exercise in exercises}) >= 12
    assert make(0).given != make(1).given
    for exercise in exercises:
        assert exercise.check(exercise.solve())


@pytest.mark.parametrize("make", MAKERS)
def test_whatever_the_answer_is_it_gets_a_sentence(make):
    for answer in NONSENSE:
        with pytest.raises(NotYet) as caught:
            make(1).check(answer)
        assert str(caught.value).endswith("."), answer


@pytest.mark.parametrize("seed", range(10))
def test_deltas_names_the_misconception(seed):
    exercise = ch16.deltas(seed)
    pieces, right = exercise.given["pieces"], exercise.solve()
    brace = next(i for i, piece in enumerate(pieces) if "}" in piece)
    for answer, message in (
        (pieces[:1] + right[1:], "a tag, and what may become one"),
        ([*right[:brace], right[brace] + "}", *right[brace + 1 :]], "a brace waits"),
        ([*right[:2], pieces[2], *right[3:]], "only what is in the arguments' own braces"),
        ([*right[:3], "", *right[4:]], "something is sure here"),
        (right[:-1], f"a list of {len(pieces)} strings"),
    ):
        with pytest.raises(NotYet, match=message):
            exercise.check(answer)


@pytest.mark.parametrize("seed", range(20))
def test_deltas_are_what_the_parser_gives_out(seed):
    exercise, parser = ch16.deltas(seed), HermesToolParser()
    for piece, right in zip(exercise.given["pieces"], exercise.solve(), strict=True):
        found = parser.extract_tool_calls_streaming(piece)
        assert "".join(d if isinstance(d, str) else d.arguments for d in found) == right


def test_promises_are_those_that_the_grammar_keeps():
    manager = StructuredOutputManager(load_tokenizer(embedded_model_path()), 3157, frozenset({2}))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    texts = {"A": "Hello", "B": call.format("g", '{"a": 1}'), "C": call.format("f", "{}")}
    seen = set()
    for seed in range(60):
        exercise = ch16.promises(seed)
        given = exercise.given
        if (key := tuple(given.values())) in seen:
            continue
        seen.add(key)
        function = {"name": "f", "parameters": schema, "strict": given["strict"]}
        named = {"type": "function", "function": {"name": "f"}}
        chosen = named if given["tool_choice"] == "a name" else given["tool_choice"]
        args = Namespace(
            tool_strict_level=given["tool_strict_level"], tool_call_parser="hermes",
            enable_auto_tool_choice=True,
        )  # fmt: skip
        choice = ToolChoice([{"function": function}], chosen, True, args)
        params = choice.constrain(SamplingParams(), manager.tokenizer).structured_outputs
        kept = ""
        for letter, text in texts.items():
            tokens = [*manager.tokenizer.encode(text), 2]
            if params and not manager.compile_grammar(params, {2}).accept_tokens(tokens):
                kept += letter
        _, calls, reason = choice.message(call.format("f", '{"a": 1}'), "stop")
        assert len(calls) == 1
        assert exercise.solve() == kept + "D" * (reason == "tool_calls")
    assert len(seen) >= 15
    exercise = ch16.promises(0)  # a name, level parameter
    for answer, message in (("BC", "A is guaranteed"), ("ABCD", "D is not guaranteed: for a tool")):
        with pytest.raises(NotYet, match=message):
            exercise.check(answer)


@pytest.mark.parametrize("seed", range(5))
def test_rounds_are_what_the_scheduler_computes(seed):
    exercise = ch16.rounds(seed)
    prompt, call, result, num_calls = exercise.calls[0]
    computed = exercise.solve()(prompt, call, result, num_calls)
    for caching, right in zip((False, True), computed, strict=True):
        tokens, requests = list(range(1000, 1000 + prompt)), []
        for number in range(num_calls + 1):
            requests.append(make_request(str(number), tokens, call, 100 * number))
            tokens = tokens + fake_tokens(tokens, call)
            tokens = tokens + [number] * result
        trace = dry_run(
            requests, num_blocks=400, block_size=16, enable_prefix_caching=caching,
            max_num_batched_tokens=4096,
        )  # fmt: skip
        prompts = {r.request_id: len(r.prompt_token_ids) for r in requests}
        first = {}
        for record in trace.of(Scheduled):
            first.setdefault(record.seq_id, record.num_computed_tokens)
        assert sum(prompts.values()) - sum(first.values()) == right


SOURCE = inspect.getsource(lab_tool_stream.tool_stream)
MISTAKES = {
    "no tag is waited for": ("keep = next((n for n in held if text.endswith(opening[:n])), 0)",
                             "keep = 0", "('content', 'Hello! 5 <')] is given out"),
    "everything is held back": ("keep = next((n for n in held if text.endswith(opening[:n])), 0)",
                                "keep = len(text)", "more is sure than you give out"),
    "the brace does not wait": ("else end - 1", "else end",
                                "JSON of a call that is not whole yet"),
    "strings are not looked at": ("in_string = not in_string", "pass", "is sure"),
    "escapes are not looked at": ("escaped = in_string", "pass", "is sure"),
    "the end is forgotten": ('[("content", text)] if text else []', "[]",
                             "at the end more is sure"),
    "the last list is forgotten": ('    yield [("content", text)] if text else []\n', "",
                                   "one list a piece, and one at the end"),
    "arguments wait for the call": ("len(text) if end is None else end - 1", "begin + given",
                                    "more is sure than you give out"),
}  # fmt: skip


def test_the_solution_gives_out_what_the_engines_parser_does():
    def pairs(deltas):
        for delta in deltas:
            if isinstance(delta, str):
                yield "content", delta
            else:
                kind = "arguments" if delta.name is None else "name"
                yield kind, delta.name or delta.arguments

    for text in lab_tool_stream.TEXTS.values():
        for pieces in lab_tool_stream.cuts_of(text, 0):
            parser, solution = HermesToolParser(), lab_tool_stream.tool_stream(iter(pieces))
            mine, right = lab_tool_stream.Message(), lab_tool_stream.Message()
            for piece in pieces:
                mine.add(next(solution))
                right.add(pairs(parser.extract_tool_calls_streaming(piece)))
                assert mine.sure == right.sure
            mine.add(next(solution))
            right.add(pairs(parser.finish()))
            assert mine.parts == right.parts


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_lab_is_told(name, capsys):
    right, wrong, message = MISTAKES[name]
    assert SOURCE.count(right) == 1
    names = {}
    exec(SOURCE.replace(right, wrong), names)
    labs.tool_stream.grade(names["tool_stream"])
    said = capsys.readouterr().out
    assert said.startswith("FAILED   tool_stream")
    assert message in said
    assert milestones.passed() == {}


def test_the_lab_says_what_shape_it_wants(capsys):
    for function, message in (
        (lambda pieces: ["x" for _ in pieces], "yield lists of pairs"),
        (lambda pieces: 1 // 0, "ZeroDivisionError"),
        (lambda pieces: iter([]), "yield one list a piece"),
    ):
        labs.tool_stream.grade(function)
        assert message in capsys.readouterr().out


# -- the figure --------------------------------------------------------------------------------

PIECES = [
    "Sure <b> ",
    "<tool",
    '_call>{"name": "f", ',
    '"arguments": {"a": ',
    '"<&"}}',
    "</tool_call>",
]


def test_the_figure_has_a_row_for_each_piece():
    figure = call_stream(HermesToolParser(), PIECES)
    root = ElementTree.fromstring(figure.svg)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "6 pieces of a text, 1 whole call"
    assert words[1] == (
        "given out: 1 × content, 1 × name, 3 × arguments; the first name with piece 4"
    )
    assert words.count("content") == 4  # rows 1, 2 and 6, and what the first one gives out
    assert words.count("call") == 1
    assert '"<&"' in words
    assert figure.text.splitlines()[2:] == [
        "'Sure <b> '             content    content 'Sure <b> '",
        "'<tool'                 content",
        '\'_call>{"name": "f", \'  call',
        "'\"arguments\": {\"a\": '   arguments  name 'f'  arguments '{\"a\": '",
        "'\"<&\"}}'                arguments  arguments '\"<&\"'",
        "'</tool_call>'          content    arguments '}'",
    ]


def test_a_long_piece_is_cut_in_the_picture_and_whole_in_the_text():
    figure = call_stream(HermesToolParser(), ["a" * 100 + "b"])
    assert f">{'a' * 20}…{'a' * 19}b<" in figure.svg
    assert "a" * 100 + "b" in figure.text


def test_what_the_end_gives_out_has_a_row_of_its_own():
    figure = call_stream(HermesToolParser(), PIECES[:4])
    assert "0 whole calls" in figure.alt
    assert figure.text.splitlines()[-1].startswith("(end)")
    with pytest.raises(ValueError, match="pieces must be at least one"):
        call_stream(HermesToolParser(), [])
