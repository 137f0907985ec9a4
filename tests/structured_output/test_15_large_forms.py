"""Large forms: they work, or are refused when their request is added, naming the limit."""

import json
import random

import numpy as np
import pytest
from helpers import nightly
from http_server import serving

from minivllm import LLM, SamplingParams, embedded_model_path
from minivllm.config.structured_outputs import StructuredOutputsConfig, StructuredOutputsParams
from minivllm.engine.input_processor import load_tokenizer
from minivllm.structured_output.backend_types import num_words
from minivllm.structured_output.manager import StructuredOutputManager

VOCAB, EOS = 3157, frozenset([0, 2])


def properties(count, **more):
    return {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(count)},
            **more}  # fmt: skip


def alternatives(count):
    return " | ".join(f'"w{i}"' for i in range(count))


CHOICE = [f"the city number {i}" for i in range(3000)]
LAST = '{"p0": true, "p%d": false}'
LARGE = {
    "500 properties": ({"json": properties(500)}, LAST % 499),
    "3,000 properties": ({"json": properties(3000)}, LAST % 2999),
    "3,000 and no others": ({"json": properties(3000, additionalProperties=False)}, LAST % 2999),
    "3,000, all required": (
        {"json": properties(3000, required=[f"p{i}" for i in range(3000)])},
        json.dumps(dict.fromkeys((f"p{i}" for i in range(3000)), True)),
    ),
    "an object inside": (
        {"json": {"type": "object", "properties": {"a": properties(1000)}}},
        '{"a": %s}' % (LAST % 999),
    ),
    "3,000 values": ({"json": {"enum": CHOICE}}, json.dumps(CHOICE[-1])),
    "2,500 alternatives": ({"grammar": f"start: {alternatives(2500)}"}, "w2499"),
    "lists of them": (
        {"grammar": f'start: item ("," item)*\nitem: {alternatives(2500)}'},
        "w0,w2499,w7",
    ),
    "a choice of 10,000 bytes": ({"choice": CHOICE}, CHOICE[-1]),
    "of one long text": ({"choice": ["x" * 20_000, ""]}, "x" * 20_000),
    "of a choice and nothing": ({"choice": ["x" * 20_000, "", 'a"/\\\n🙂']}, 'a"/\\\n🙂'),
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(embedded_model_path())


@pytest.fixture(scope="module")
def manager(tokenizer):
    return StructuredOutputManager(tokenizer, VOCAB, EOS)


def allowed(grammar):
    bitmask = np.zeros((1, num_words(VOCAB)), np.int32)
    grammar.fill_bitmask(bitmask, 0)
    return np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")[:VOCAB])


@pytest.mark.parametrize("name", LARGE)
def test_a_large_form_can_be_followed_to_its_end(manager, tokenizer, name):
    form, text = LARGE[name]
    tokens = tokenizer.encode(text, add_special_tokens=False)
    grammar = manager.compile_grammar(StructuredOutputsParams(**form), EOS)
    for i, token in enumerate(tokens):
        if i < 30:
            assert token in allowed(grammar)
        assert grammar.accept_tokens([token]), (i, tokenizer.decode(tokens[: i + 1]))
    assert set(allowed(grammar)) >= EOS
    grammar.rollback(len(tokens))
    assert grammar.may_end() == ("" in form.get("choice", ()))


TOO_LARGE = {
    "20,000 properties": ({"json": properties(20_000)}, "json must .*too large.*50,000 symbols"),
    "40,000 alternatives": (
        {"grammar": "start: " + " | ".join(f'"w{i}" rest' for i in range(40_000)) + '\nrest: "x"'},
        "grammar must .*too big.*50,000 symbols",
    ),
    "masks that take too long": (
        {"grammar": f'start: "<" word+\nword: {alternatives(10_000)}'},
        r"grammar must .*cannot go on.*Too many items \(limit 1000000",
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_form_that_is_too_large_names_the_limit(manager, name):
    form, words = TOO_LARGE[name]
    with pytest.raises(ValueError, match=f"(?s)^{words}") as refused:
        manager.compile_grammar(StructuredOutputsParams(**form), EOS)
    assert len(str(refused.value)) < 1000


def test_only_the_automaton_wants_short_choices(tokenizer):
    config = StructuredOutputsConfig(backend="fsm")
    manager = StructuredOutputManager(tokenizer, VOCAB, EOS, config)
    with pytest.raises(ValueError, match="choice must be texts of under 10,000 bytes"):
        manager.compile_grammar(StructuredOutputsParams(choice=["x" * 20_000]), EOS)


@pytest.mark.parametrize("count", [1, 300, 1500, pytest.param(4000, marks=nightly)])
def test_what_is_accepted_can_go_on(manager, count):
    """Random texts in forms of any size: no mask is empty."""
    rng = random.Random(count)
    for form in (
        {"json": properties(count)},
        {"json": {"type": "array", "items": properties(count // 2, additionalProperties=False)}},
        {"json": {"anyOf": [{"const": [i]} for i in range(count)]}},
        {"grammar": f'start: item (" " item)*\nitem: {alternatives(count)}'},
        {"grammar": f"start: item start | item\nitem: {alternatives(count)}"},
    ):
        grammar = manager.compile_grammar(StructuredOutputsParams(**form), EOS)
        for _ in range(40):
            tokens = sorted(set(allowed(grammar).tolist()) - EOS)
            assert tokens or grammar.may_end(), (form, count)
            if not tokens:
                break
            assert grammar.accept_tokens([rng.choice(tokens)])


WORK = ["500 properties", "2,500 alternatives", "a choice of 10,000 bytes"]


@pytest.mark.parametrize("name", WORK)
def test_the_engine_writes_in_a_large_form(tiny_chat, name):
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200)
    params = StructuredOutputsParams(**LARGE[name][0])
    too_large = StructuredOutputsParams(**TOO_LARGE["20,000 properties"][0])
    with pytest.raises(ValueError, match="50,000 symbols"):
        llm.llm_engine.add_request("x", "Hi", SamplingParams(structured_outputs=too_large))
    assert not llm.llm_engine.has_unfinished_requests()
    (output,) = llm.generate("Hi", SamplingParams(max_tokens=40, seed=0, structured_outputs=params))
    assert output.outputs[0].finish_reason in ("stop", "length")
    assert output.outputs[0].text


def test_the_server_answers_in_a_large_form_or_refuses_it():
    with serving() as server, server.client() as client:
        for name in WORK:
            body = {"prompt": "x", "max_tokens": 5, "structured_outputs": LARGE[name][0]}
            answer = client.post("/v1/completions", json=body).json()
            assert answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
            assert answer["choices"][0]["text"]
        for form, _ in TOO_LARGE.values():
            body = {"prompt": "x", "stream": True, "structured_outputs": form}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 400
            assert "limit" in answer.json()["error"]["message"]
