"""JSON schemas, keyword by keyword: a grammar's verdict is that of the jsonschema package."""

import json
from collections import Counter

import pytest
from json_schemas import CASES
from jsonschema import Draft202012Validator

from minivllm import embedded_model_path
from minivllm.engine.input_processor import load_tokenizer
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.sampling_params import StructuredOutputsParams
from minivllm.structured_output.manager import StructuredOutputManager

# What llguidance refuses, and how it names that in its reason.
REFUSED = {
    "uniqueItems": "uniqueItems", "contains": "contains", "propertyNames": "propertyNames",
    "dependentRequired": "dependentRequired", "dependentSchemas": "dependentSchemas",
    "unevaluatedProperties": "unevaluatedProperties", "unevaluatedItems": "unevaluatedItems",
    "not": "not", "if": "if", "oneOf": "oneOf", "pattern": "look-around", "format": "format",
    "$ref": "Pointer|registry", "const": "Unsatisfiable",
}  # fmt: skip


@pytest.fixture(scope="module")
def manager():
    tokenizer = load_tokenizer(embedded_model_path())
    return StructuredOutputManager(tokenizer, 3157, frozenset([0, 2]))


def test_a_verdict_is_right_or_there_is_none(manager):
    """Texts as ``json.dumps`` writes them, with their end."""
    verdicts, refused = Counter(), Counter()
    for keyword, schema, instances in CASES:
        try:
            grammar = manager.compile_grammar(StructuredOutputsParams(json=schema), [2])
        except ValueError as error:
            reason = str(error).rpartition("' (")[2]
            with pytest.raises(ValueError, match=REFUSED[keyword]):
                raise ValueError(reason) from error
            refused[keyword] += 1
            continue
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        for instance in instances:
            text = json.dumps(instance, ensure_ascii=False)
            right = validator.is_valid(instance)
            tokens = manager.vocabulary.encode(text)
            assert grammar.fork().accept_tokens([*tokens, 2]) == right, (schema, text)
            verdicts[right] += 1
    assert sum(refused.values()) < 0.35 * len(CASES)
    assert refused.keys() == REFUSED.keys(), "what is refused no more leaves the table"
    assert min(verdicts[True], verdicts[False]) > 200


def test_every_spelling_of_a_valid_text_is_accepted(manager):
    """Byte by byte, where the vocabulary has them, the verdict is the same."""
    byte = {token: i for i, token in enumerate(manager.vocabulary.tokens) if len(token or "") == 1}
    compared = 0
    for _, schema, instances in CASES:
        try:
            grammar = manager.compile_grammar(StructuredOutputsParams(json=schema), [2])
        except ValueError:
            continue
        for instance in instances:
            text = json.dumps(instance, ensure_ascii=False)
            usual = grammar.fork().accept_tokens([*manager.vocabulary.encode(text), 2])
            single = [byte[bytes([b])] for b in text.encode()]
            assert grammar.fork().accept_tokens([*single, 2]) == usual, (schema, text)
            compared += 1
    assert compared > 500


FORMATS = ("date-time", "date", "time", "duration", "email", "idn-email", "hostname",
           "idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid",
           "uri-template", "json-pointer", "relative-json-pointer", "regex")  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_of_the_standard_is_taken(manager, name):
    """One that no grammar is known for says something of a text, and constrains nothing."""
    text = {"type": "string", "format": name}
    for schema in (
        text,
        {"format": name, "type": ["string", "null"], "description": "one"},
        {"type": "array", "items": {"anyOf": [text, {"type": "null"}]}},
        {"type": "object", "properties": {"format": text, "const": text}, "required": ["format"]},
        {"$defs": {"enum": text}, "$ref": "#/$defs/enum"},
    ):
        assert manager.compile_grammar(StructuredOutputsParams(json=schema), [2])
    form = CallForm("<%s", ">", "")
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": text}}}
    options = {"forced": True, "parallel": False, "special_token_ids": {}}
    grammar = form.grammar([tool], strict=lambda tool: True, **options)
    assert manager.compile_grammar(StructuredOutputsParams(grammar=grammar), [2])


def test_a_format_that_is_quoted_is_a_value(manager):
    quoted = {"format": "iri", "properties": {}}
    for schema in ({"const": quoted}, {"enum": [quoted]}):
        params = StructuredOutputsParams(json=schema, disable_additional_properties=True)
        grammar = manager.compile_grammar(params, [2])
        tokens = manager.vocabulary.encode(json.dumps(quoted))
        assert grammar.fork().accept_tokens([*tokens, 2])
        assert not grammar.fork().accept_tokens([*manager.vocabulary.encode("{}"), 2])
