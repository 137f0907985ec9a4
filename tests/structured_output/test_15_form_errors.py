"""Forms that cannot be: the error names the field, its value and what it may be, at once."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm import SamplingParams
from minivllm.config.structured_outputs import KINDS
from minivllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from minivllm.utils.validation import shown

HALF = "\ud800"
NOT_FINITE = [math.nan, math.inf, -math.inf]
TEXTS = "without lone surrogates"
BAD = [
    ({"regex": HALF}, "regex", TEXTS, r"'\ud800'"),
    ({"regex": f"a{HALF}*"}, "regex", TEXTS, r"'a\ud800*'"),
    ({"choice": [HALF]}, "choice", TEXTS, r"['\ud800']"),
    ({"choice": ["a", f"b{HALF}"]}, "choice", TEXTS, r"b\ud800"),
    ({"grammar": f'start: "{HALF}"'}, "grammar", TEXTS, r"\ud800"),
    ({"json": f'{{"const": "{HALF}"}}'}, "json", TEXTS, r"\ud800"),
    ({"json": r'{"const": "\ud800"}'}, "json", TEXTS, r"'\ud800'"),
    ({"json": {"const": HALF}}, "json", TEXTS, r"'\ud800'"),
    ({"json": {HALF: True}}, "json", TEXTS, r"'\ud800'"),
    ({"json": {"properties": {HALF: {}}}}, "json", TEXTS, r"'\ud800'"),
    ({"json": {"enum": ["a", ["b", {"c": HALF}]]}}, "json", TEXTS, r"'\ud800'"),
    ({"json": {"type": "string", "pattern": HALF}}, "json", TEXTS, r"'\ud800'"),
    ({"json": "{"}, "json", "a JSON schema", "'{'"),
    ({"json": '{"minimum": NaN}'}, "json", "finite", "nan"),
    ({"json": '{"minimum": -Infinity}'}, "json", "finite", "-inf"),
    ({"json": '{"minimum": 1e999}'}, "json", "finite", "inf"),
    ({"json": '{"minimum": %s}' % ("9" * 5000)}, "json", "a JSON schema", "'{\"minimum\": 999"),
    ({"json": {"minimum": 10**5000}}, "json", "finite", "bits"),
    ({"json": {"type": object}}, "json", "JSON's own types", "<class 'object'>"),
    ({"json": {(1, 2): True}}, "json", "JSON's own types", "(1, 2)"),
    *(({"json": {"minimum": x}}, "json", "finite", repr(x)) for x in NOT_FINITE),
    *(({"json": {"allOf": [{"enum": [1, [x]]}]}}, "json", "finite", repr(x)) for x in NOT_FINITE),
    ({"json_object": True, "whitespace_pattern": "("}, "whitespace_pattern", "a regular expr", "("),
    ({"json": {}, "whitespace_pattern": HALF}, "whitespace_pattern", TEXTS, r"'\ud800'"),
    ({"json": {}, "whitespace_pattern": "a{3"+"0"*30+"}"}, "whitespace_pattern", "a reg", "'a{3"),
]  # fmt: skip


@pytest.mark.parametrize("params", [StructuredOutputsParams, GuidedDecodingParams])
@pytest.mark.parametrize(("form", "field", "wanted", "value"), BAD, ids=lambda v: shown(v)[:40])
def test_an_error_names_field_value_and_what_may_be(params, form, field, wanted, value):
    with pytest.raises(ValueError, match=rf"^{field} must .*{wanted}") as refused:
        params(**form)
    assert value in str(refused.value)
    assert refused.value.parameter == field
    str(refused.value).encode()  # it can be written down itself


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from([*KINDS, "whitespace_pattern"]), JSON, st.booleans())
def test_any_value_of_any_field_is_taken_or_its_error_names_the_field(field, value, inside):
    if field in ("json", "choice") and inside:
        value = {"const": value} if field == "json" else [value]
    form = {field: value} if field != "whitespace_pattern" else {"json": {}, field: value}
    if value is None:
        return
    try:
        params = StructuredOutputsParams(**form)
    except ValueError as error:
        said = str(error)
    else:  # it can be sent and written down
        json.dumps(form, allow_nan=False, ensure_ascii=False).encode()
        said = f"{field} must be taken: {SamplingParams(structured_outputs=params)!r}"
    said.encode()
    assert said.startswith(f"{field} must ")
