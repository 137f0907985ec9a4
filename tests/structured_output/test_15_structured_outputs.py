"""Grammars and masks, without an engine: patterns against Python's re, masks against llguidance."""

import json
import re
import warnings
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm import SamplingParams, embedded_model_path
from minivllm.config import structured_outputs
from minivllm.config.structured_outputs import StructuredOutputsConfig
from minivllm.engine.input_processor import load_tokenizer
from minivllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from minivllm.structured_output.backend_types import num_words
from minivllm.structured_output.dfa import DEAD, DFA
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.structured_output.regex import UnsupportedRegex
from minivllm.structured_output.utf8 import byte_sequences
from minivllm.structured_output.vocabulary import Vocabulary

VOCAB, EOS = 3157, frozenset([0, 2])
PATTERNS = [
    r"\d{3}-\d{4}", r"(?:\+1 )?\(\d{3}\) \d{3}-\d{4}", r"\w+@\w+\.com\n", r"(a|b)*abb",
    r"(Rome|Paris|London|Lis(bon|ten))", r'"[^"\\\n]{0,20}"', r"(?:é|ü|世界)+x?", r".{1,40}",
    r"\w+( \w+){0,4}\.", r"-?(0|[1-9]\d*)(\.\d+)?", r"[A-Z][a-z]*(, [A-Z][a-z]*)*", r"\s*\S\s*",
    r'\{"name": "[A-Za-z ]+", "age": \d{1,3}\}', r"^x(y|$)", r"a{2,4}b?", r"(?s).?[^\W\d]\D",
]  # fmt: skip
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(embedded_model_path())


@pytest.fixture(scope="module")
def manager(tokenizer):
    return StructuredOutputManager(tokenizer, VOCAB, EOS)


def grammar(manager, backend="auto", stop_token_ids=EOS, **kind):
    params = GuidedDecodingParams(**kind, backend=backend).structured_outputs()
    return manager.compile_grammar(params, stop_token_ids)


def allowed(one) -> set[int]:
    """Token ids that the bitmask's row allows."""
    bitmask = np.zeros((2, num_words(VOCAB)), np.int32)
    one.fill_bitmask(bitmask, 1)
    assert not bitmask[0].any()
    bits = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


# -- bytes, automata ---------------------------------------------------------------------------


@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.lists(st.characters(codec="utf-8")))
def test_a_range_of_characters_is_ranges_of_bytes(a, b, characters):
    first, last = min(a, b), max(a, b)
    found = list(byte_sequences(first, last))

    def spelled(char: str) -> int:
        data = char.encode()
        return sum(
            len(s) == len(data) and all(lo <= x <= hi for x, (lo, hi) in zip(data, s, strict=True))
            for s in found
        )

    for char in characters:
        assert spelled(char) == (first <= ord(char) <= last)
    count = sum(int(np.prod([hi - lo + 1 for lo, hi in s])) for s in found)
    surrogates = max(0, min(last, 0xDFFF) - max(first, 0xD800) + 1)
    assert count == last - first + 1 - surrogates


ODD = [r"[[a]b]", r"[a&&b]", r"[a~~b]", r"[a||b]", r"a(?s).", r"(?s)a.", r"\d[[]"]


@pytest.mark.parametrize("pattern", ODD)
@pytest.mark.parametrize("form", ["regex", "json", "whitespace_pattern"])
def test_python_warns_of_no_users_pattern(manager, pattern, form):
    forms = {
        "regex": {"regex": pattern},
        "json": {"json": {"type": "string", "pattern": pattern}},
        "whitespace_pattern": {"json_object": True, "whitespace_pattern": pattern},
    }
    with warnings.catch_warnings(record=True) as heard, suppress(ValueError):
        warnings.simplefilter("always")
        manager.compile_grammar(StructuredOutputsParams(**forms[form]), [0])
    assert not heard


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_automaton_accepts_what_re_accepts(pattern):
    dfa, rng = DFA(pattern), Random(0)
    alphabet = 'ab@.com\n-0123456789"\\éü世界x()+ yRomePais,{}:n_A\t\N{NO-BREAK SPACE}🙂'
    wanted = re.compile(pattern, re.ASCII)
    for _ in range(1500):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(9)))
        assert dfa.matches(text) == bool(wanted.fullmatch(text)), text
    for _ in range(50):  # and along the way to an end, every text is one that re accepts
        state, data = 0, bytearray()
        for _ in range(60):
            if dfa.accepting[state]:
                text = data.decode()
                assert wanted.fullmatch(text), text
            onward = [b for b in range(256) if dfa.next_state(state, b) != DEAD]
            if not onward:
                break
            data.append(rng.choice(onward))
            state = dfa.next_state(state, data[-1])


@st.composite
def patterns(draw, depth=3):
    """Small regular expressions over a, b and é."""
    if depth == 0:
        return draw(st.sampled_from(["a", "b", "é", "[ab]", "[^a]", "."]))
    inner = patterns(depth=depth - 1)
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(inner) + draw(inner)
    if kind == 1:
        return f"(?:{draw(inner)}|{draw(inner)})"
    if kind == 2:
        return f"(?:{draw(inner)})" + draw(st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"]))
    return draw(inner)


@pytest.mark.slow
@examples(200)
@given(patterns(), st.lists(st.text("abéc", max_size=7), min_size=5, max_size=20))
def test_any_pattern_is_read_as_re_reads_it(pattern, texts):
    dfa = DFA(pattern)
    for text in texts:
        assert dfa.matches(text) == bool(re.fullmatch(pattern, text))


def test_states_that_cannot_end_are_not_there():
    assert DFA("a|b[^\\s\\S]").matches("a")
    assert DFA("a|b[^\\s\\S]").run(b"b") == DEAD
    with pytest.raises(ValueError, match="regex must match some text"):
        DFA("[^\\s\\S]")


@pytest.mark.parametrize(
    ("pattern", "states"),
    [(r"\d+", 2), ("a*", 1), (r"\d+(\.\d\d)?", 5), ("a{2,4}b?", 6), ("(a|b)*abb", 4)],
)
def test_states_that_only_jump_make_no_difference(pattern, states):
    assert DFA(pattern).num_states == states


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(.{1,300}){1,300}", "at most 20,000 states before"),
        ("(a|b)*a(a|b){20}", "at most 10,000 states"),
        ("(\\w{1,100}[a-z]{1,100}){50}", "at most 10,000 states"),
        ("(", "must be a regular expression.*unterminated subpattern"),
        ("a{2,1}", "must be a regular expression"),
    ],
)
def test_bombs_and_nonsense_are_refused(pattern, words):
    with pytest.raises(ValueError, match=words) as caught:
        DFA(pattern)
    assert not isinstance(caught.value, UnsupportedRegex)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "look-arounds"), ("(?<!a)b", "look-arounds"), ("(a)\\1", "back references"),
        ("a\\bc", "anchors and boundaries"), ("a^b", "anchors"), ("(?i)a", "IGNORECASE"),
        ("(?i:a)b", "flags for a part"),
    ],
)  # fmt: skip
def test_what_no_automaton_does_is_named(pattern, words):
    with pytest.raises(UnsupportedRegex, match=words):
        DFA(pattern)


# -- tokens ------------------------------------------------------------------------------------


def test_the_vocabulary_spells_what_the_tokenizer_decodes(tokenizer, manager):
    vocabulary, rng = manager.vocabulary, Random(0)
    assert [i for i, token in enumerate(vocabulary.tokens) if token is None] == [0, 1, 2]
    for _ in range(300):
        ids = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 6))]
        text = b"".join(vocabulary.tokens[i] for i in ids).decode(errors="replace")
        assert tokenizer.decode(ids) == text


def test_sentencepiece_tokens_are_bytes_too():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokens = ["</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "▁a", "▁▁"]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    vocabulary = Vocabulary.from_tokenizer(fast, 262, frozenset([0]))
    assert vocabulary.tokens[0] is None
    assert vocabulary.tokens[1 + 0xE4] == b"\xe4"
    assert vocabulary.tokens[257:] == [b" ", b"a", b" a", b"  ", None]
    tokenizer.decoder = decoders.WordPiece()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    with pytest.raises(ValueError, match=r"byte-level or the SentencePiece kind.*WordPiece"):
        Vocabulary.from_tokenizer(fast, 262, frozenset([0]))


def test_states_that_no_token_tells_apart_share_a_mask(manager):
    """The longest token has 42 bytes: before the last 42 letters all states of this are alike."""
    patterns = [r"[a-z ]{100}", r"(a{5}b?c|[d-z]{3}){30}", r"([a-z ]+\n){50}", *PATTERNS]
    for pattern in patterns:
        automaton = grammar(manager, "fsm", regex=pattern).automaton
        masks = [automaton.mask(state) for state in range(automaton.dfa.num_states)]
        bits = [np.unpackbits(m.view(np.uint8), count=VOCAB, bitorder="little") for m in masks]
        for state, row in enumerate(bits):
            assert (row == automaton.allowed(state)).all(), (pattern, state)
    counted = grammar(manager, "fsm", regex=r"[a-z ]{100}").automaton
    assert [counted.mask(state) is counted.mask(0) for state in (1, 58, 59, 99)] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_holds_exactly_the_tokens_whose_bytes_lead_on(manager, pattern):
    one, rng = grammar(manager, "fsm", regex=pattern), Random(1)
    dfa, tokens = one.automaton.dfa, manager.vocabulary.tokens
    for _ in range(6):
        wanted = {i for i, t in enumerate(tokens) if t and dfa.run(t, one.state) != DEAD}
        wanted |= EOS if dfa.accepting[one.state] else set()
        assert allowed(one) == wanted
        text = sorted(wanted - EOS)
        if not text:
            break
        assert one.accept_tokens([rng.choice(text)])


def test_masks_are_those_of_llguidance(manager):
    """Forced bytes are narrowed to their usual tokens; all other masks are equal."""
    rng, positions, narrowed = Random(0), 0, 0
    for pattern in PATTERNS:
        if "^" in pattern[:1]:
            continue  # it takes no anchors
        for _ in range(12):
            ours = grammar(manager, "fsm", regex=pattern)
            theirs = grammar(manager, "guidance", regex=pattern)
            for _ in range(12):
                mine, other = allowed(ours), allowed(theirs)
                if mine != other:
                    assert ours.automaton.dfa.forced_bytes(ours.state)
                    assert other < mine
                    narrowed += 1
                positions += 1
                token = rng.choice(sorted(other))
                assert ours.accept_tokens([token])
                assert theirs.accept_tokens([token])
                assert ours.is_terminated() == theirs.is_terminated()
                if ours.is_terminated():
                    break
    assert positions >= 1000
    assert narrowed < positions / 10


# -- the grammar of one sequence ---------------------------------------------------------------

KINDS = [
    ({"regex": r"\d{2,3}(-\d{2})?"}, "fsm"),
    ({"regex": r"\d{2,3}(-\d{2})?"}, "guidance"),
    ({"choice": ["Rome", "Paris", "Par", "世界 🙂"]}, "fsm"),
    ({"choice": ["Rome", "Paris", "Par", "世界 🙂"]}, "guidance"),
    ({"json": PERSON}, "guidance"),
    ({"json_object": True}, "guidance"),
    ({"grammar": 'start: "(" start ")" | "x"'}, "guidance"),
]


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_a_grammar_can_be_walked_back_and_copied(manager, kind, backend):
    rng = Random(3)
    for _ in range(10):
        one, masks, taken = grammar(manager, backend, **kind), [], []
        for _ in range(12):
            masks.append(allowed(one))
            taken.append(rng.choice(sorted(masks[-1])))
            copy = one.fork()
            assert one.validate_tokens([taken[-1]]) == [taken[-1]]
            assert one.accept_tokens([taken[-1]])
            assert allowed(copy) == masks[-1]
            if one.is_terminated():
                break
        assert grammar(manager, backend, **kind).validate_tokens(taken) == taken
        back = rng.randint(1, len(taken))
        one.rollback(back)
        assert not one.is_terminated()
        assert allowed(one) == masks[-back]
        assert one.accept_tokens(taken[len(taken) - back :])


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_a_refused_token_changes_nothing(manager, kind, backend):
    one, rng = grammar(manager, backend, **kind), Random(5)
    for _ in range(5):
        mask = allowed(one)
        right = rng.choice(sorted(mask))
        wrong = rng.choice(sorted(set(range(VOCAB)) - mask))
        assert not one.accept_tokens([wrong])
        assert one.validate_tokens([wrong, right]) == []
        assert allowed(one) == mask
        assert one.accept_tokens([right])
        if one.is_terminated():
            break


def test_the_text_ends_where_it_may_and_with_what_stops_the_request(manager, tokenizer):
    stop = tokenizer.convert_tokens_to_ids("5")
    for backend in ("fsm", "guidance"):
        one = grammar(manager, backend, stop_token_ids=EOS | {stop}, choice=["Par", "Paris"])
        assert not allowed(one) & {0, 2, stop}
        assert one.accept_tokens(tokenizer.encode("Par"))
        assert allowed(one) >= {0, 2, stop}
        assert one.validate_tokens([stop, stop]) == [stop]
        assert one.accept_tokens([stop])
        assert one.is_terminated()
        assert len(allowed(one)) >= VOCAB  # behind the end anything goes
        assert one.accept_tokens([17])
        one.rollback(2)
        assert not one.is_terminated()
        assert one.accept_tokens(tokenizer.encode("is"))
        assert allowed(one) == {0, 2, stop}
        # a stop token has no part in the text: in its middle it would end it
        one = grammar(manager, backend, stop_token_ids=EOS | {stop}, regex="[5-6]+")
        assert stop not in allowed(one)
        assert not one.accept_tokens([stop])
        assert one.accept_tokens(tokenizer.encode("6"))
        assert stop in allowed(one)
        assert one.accept_tokens([stop])
        assert one.is_terminated()


def test_characters_may_be_split_between_tokens(manager, tokenizer):
    one, data = grammar(manager, choice=["世界 🙂"]), b""
    while not one.may_end():
        tokens = sorted(allowed(one), key=lambda i: len(manager.vocabulary.tokens[i]))
        assert one.accept_tokens([tokens[0]])
        data += manager.vocabulary.tokens[tokens[0]]
    assert data.decode() == "世界 🙂"
    assert len(one.states) - 1 == len("世界 🙂".encode())


@pytest.mark.parametrize("backend", ["fsm", "guidance"])
def test_what_is_forced_is_said_in_the_usual_tokens(manager, tokenizer, backend):
    one = grammar(manager, backend, regex='\\{"name": "(Ada|Bob)", "age": 7\\}')
    forced = one.forced_tokens()
    assert len(forced) >= 3
    assert one.validate_tokens(forced) == forced
    assert '{"name": "'.startswith(tokenizer.decode(forced))
    assert one.accept_tokens(tokenizer.encode('{"name": "Ada'))
    rest = one.forced_tokens()
    assert tokenizer.decode(rest) == '", "age": 7}'
    assert one.accept_tokens([*rest, 2])
    assert one.forced_tokens() == []
    assert grammar(manager, backend, regex="a|b").forced_tokens() == []


def test_drafts_have_a_row_each_and_leave_no_trace(manager, tokenizer):
    one, two = grammar(manager, regex="[0-9]-x"), grammar(manager, json=PERSON)
    drafts = tokenizer.encode("7-")
    bitmask = manager.grammar_bitmask([(one, drafts), (two, [])])
    assert bitmask.shape == (4, num_words(VOCAB))
    for row, behind in enumerate(([], drafts[:1], drafts)):
        copy = one.fork()
        assert copy.accept_tokens(behind)
        wanted = np.zeros((1, num_words(VOCAB)), np.int32)
        copy.fill_bitmask(wanted, 0)
        assert (bitmask[row] == wanted[0]).all()
    assert allowed(one) == allowed(grammar(manager, regex="[0-9]-x"))


# -- JSON --------------------------------------------------------------------------------------


def accepts(one, tokenizer, text: str) -> bool:
    return one.fork().accept_tokens([*tokenizer.encode(text), 2])


@pytest.mark.parametrize(
    ("options", "compact", "one_blank", "lines"),
    [
        ({}, True, True, False),
        ({"disable_any_whitespace": True}, True, False, False),
        ({"whitespace_pattern": "[ \\n]*"}, True, True, True),
    ],
)
def test_blanks_between_json_tokens(manager, tokenizer, options, compact, one_blank, lines):
    params = StructuredOutputsParams(json=PERSON, **options)
    one = manager.compile_grammar(params, EOS)
    assert accepts(one, tokenizer, '{"name":"Ada","age":36}') == compact
    assert accepts(one, tokenizer, '{"name": "Ada", "age": 36}') == one_blank
    assert accepts(one, tokenizer, '{\n  "name": "Ada",\n  "age": 36\n}') == lines
    config = StructuredOutputsConfig(disable_any_whitespace=True)
    strict = StructuredOutputManager(tokenizer, VOCAB, EOS, config)
    one = strict.compile_grammar(StructuredOutputsParams(json=json.dumps(PERSON)), EOS)
    assert not accepts(one, tokenizer, '{"name": "Ada", "age": 36}')


def test_schemas_open_and_closed(manager, tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = '{"a": 1, "b": 2}'
    assert accepts(grammar(manager, json=schema), tokenizer, text)
    params = StructuredOutputsParams(json=schema, disable_additional_properties=True)
    assert not accepts(manager.compile_grammar(params, EOS), tokenizer, text)
    assert accepts(manager.compile_grammar(params, EOS), tokenizer, '{"a": 1}')
    assert accepts(grammar(manager, json_object=True), tokenizer, '{"x": [1, null]}')
    assert not accepts(grammar(manager, json_object=True), tokenizer, "[1]")
    assert accepts(grammar(manager, json=True), tokenizer, "[1]")


def test_a_pydantic_class_is_a_schema(manager, tokenizer):
    from pydantic import BaseModel

    class Car(BaseModel):
        brand: str
        year: int

    one = grammar(manager, json=Car)
    assert accepts(one, tokenizer, '{"brand": "Ford", "year": 1999}')
    assert not accepts(one, tokenizer, '{"brand": "Ford"}')


def test_both_notations_of_a_grammar(manager, tokenizer):
    lark = 'start: "SELECT " NAME " FROM " NAME\nNAME: /[a-z]+/'
    gbnf = 'root ::= "SELECT " name " FROM " name\nname ::= [a-z]+'
    for notation in (lark, gbnf):
        one = grammar(manager, grammar=notation)
        assert accepts(one, tokenizer, "SELECT a FROM b")
        assert not accepts(one, tokenizer, "SELECT a FROM")


# -- what is refused, and in which words -------------------------------------------------------


def nested(levels: int) -> dict:
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"choice": []}, "choice must be a list of at least one string"),
        ({"choice": ["a", 1]}, "choice must be a list of at least one string"),
        ({"regex": ""}, "regex must be a non-empty string"),
        ({"regex": "("}, "regex must be a regular expression"),
        ({"regex": "(.{1,300}){1,300}"}, "at most 20,000 states"),
        ({"regex": "(?=a)b"}, "regex must be one that the backend 'guidance' can follow"),
        ({"regex": "a", "choice": ["b"]}, "only use one kind .* specified: regex, choice"),
        ({}, "You must use one kind"),
        ({"json": "{"}, "json must be a JSON schema"),
        ({"json": 3}, "json must be a JSON schema"),
        ({"json": {"type": object}}, "JSON's own types"),
        ({"json": nested(65)}, "at most 64 nested levels"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "Unsatisfiable"),
        ({"json": False}, "Unsatisfiable"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        (
            {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
            "nothing can come first",
        ),
        ({"json": {"not": {}}}, r'json must be .*Unimplemented keys: \["not"\]'),
        ({"json": {"type": "string", "pattern": "("}}, "unclosed group"),
        ({"grammar": " "}, "grammar must be a non-empty string"),
        ({"grammar": 'start: "a" foo'}, 'grammar must be .* unknown name: "foo"'),
        ({"grammar": 'root ::= "a'}, "grammar must be one .*GBNF"),
        ({"json": {}, "whitespace_pattern": "(?=a)"}, r"^whitespace_pattern must .*\(\?=a\)"),
        ({"json_object": True, "whitespace_pattern": "(a)\\1"}, "^whitespace_pattern must be one"),
        ({"json": {"not": {}}, "whitespace_pattern": " "}, "^json must be one"),
        (
            {
                "json": {
                    "type": "object",
                    "required": ["a"],
                    "properties": {"a": {"type": "integer"}},
                },
                "whitespace_pattern": "a{100000}",
            },
            "^whitespace_pattern must be one .* too many express",
        ),
        ({"json_object": False}, "json_object must be True"),
        ({"regexp": "a"}, "did you mean 'regex'"),
        ({"regex": "a", "whitespace_pattern": 1}, "whitespace_pattern must be"),
        ({"regex": "a", "disable_any_whitespace": 1}, "disable_any_whitespace must be"),
    ],
)
def test_what_is_refused(manager, kind, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        manager.compile_grammar(StructuredOutputsParams(**kind), EOS)


def test_backends_by_name(manager, tokenizer, capsys):
    assert type(grammar(manager, "auto", regex="a")).__name__ == "FsmGrammar"
    assert type(grammar(manager, "auto", regex="(?i)a")).__name__ == "GuidanceGrammar"
    assert type(grammar(manager, "guidance", regex="a")).__name__ == "GuidanceGrammar"
    with pytest.raises(UnsupportedRegex):
        grammar(manager, "fsm", regex="(?i)a")
    with pytest.raises(ValueError, match="backend must be 'auto' or 'guidance' for json"):
        grammar(manager, "fsm", json=PERSON)
    with pytest.raises(ValueError, match="backend must be one of auto, fsm, guidance, xgrammar"):
        StructuredOutputsConfig(backend="xgramar")
    structured_outputs._say_what_is_used.cache_clear()
    capsys.readouterr()
    config = StructuredOutputsConfig(backend="lm-format-enforcer:no-fallback")
    assert config.backend == "auto"
    assert "lm-format-enforcer is not used here" in capsys.readouterr().out
    StructuredOutputsConfig(backend="lm-format-enforcer")  # said once
    assert capsys.readouterr().out == ""


def test_without_a_tokenizer_there_are_no_grammars():
    manager = StructuredOutputManager(None, VOCAB, EOS)
    with pytest.raises(ValueError, match="skip_tokenizer_init=True"):
        grammar(manager, regex="a")


def test_equal_parameters_are_compiled_once(manager):
    one, two = grammar(manager, json=PERSON), grammar(manager, json=dict(PERSON))
    hits = manager._compiled.cache_info().hits
    grammar(manager, json=dict(PERSON))
    assert manager._compiled.cache_info().hits == hits + 1
    assert one.accept_tokens(sorted(allowed(one))[:1])
    assert allowed(two) != allowed(one)


def test_sampling_params_take_both_names():
    new = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    old = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"))
    assert old == new
    assert repr(new) == ("SamplingParams(structured_outputs=StructuredOutputsParams(regex='a'))")
    with pytest.raises(ValueError, match="structured_outputs must be a StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(ValueError, match="None beside structured_outputs"):
        SamplingParams(
            structured_outputs=StructuredOutputsParams(regex="a"),
            guided_decoding=GuidedDecodingParams(regex="a"),
        )
