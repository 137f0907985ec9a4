"""JSON schemas by keyword, each with texts to be judged; by hand, after the specification.

What is valid is for the ``jsonschema`` package to say. The properties of an object stand in the
order of the schema, which a grammar prescribes and the specification does not.
"""

from __future__ import annotations

from typing import Any

Case = tuple[str, Any, list[Any]]  # the keyword, the schema, and instances

OBJECT = {"type": "object"}
CLOSED = {"additionalProperties": False}
INTEGER, STRING, BOOLEAN = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
ANYTHING: list[Any] = [
    None, True, False, 0, -1, 12, 3.5, "", "a", "12", "é", "世界", 'a"b\\c\n', [], [1],
    [[]], {}, {"a": 1}, {"a": {"b": [None]}},
]  # fmt: skip


def _typed(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name} | more


def _object(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict:
    return OBJECT | {"properties": properties, "required": required or []} | more


TYPES: list[Case] = [
    ("type", _typed(name), ANYTHING)
    for name in ("null", "boolean", "integer", "number", "string", "array", "object")
]
TYPES += [
    ("type", {"type": ["integer", "null"]}, ANYTHING),
    ("type", {"type": ["string", "array"]}, ANYTHING),
    ("type", {}, ANYTHING),
    ("type", True, ANYTHING),
]

VALUES: list[Case] = [
    ("enum", {"enum": ["red", "green"]}, ["red", "green", "blue", "", "re", None, 1]),
    ("enum", {"enum": [1, "1", None, [1, 2], {"a": 1}]}, [1, "1", None, [1, 2], [1], {"a": 1}, {}]),
    ("enum", _typed("string", enum=["a", "b"]), ["a", "b", "c", "ab"]),
    ("enum", _typed("integer", enum=[1, 2, "x"]), [1, 2, 3, "x"]),
    ("const", {"const": "x"}, ["x", "xx", "", None]),
    ("const", {"const": None}, [None, False, 0, ""]),
    ("const", {"const": {"a": [1, True]}}, [{"a": [1, True]}, {"a": [1, False]}, {"a": [1]}]),
    ("const", {"const": 'quote " and \\'}, ['quote " and \\', "quote"]),
]

NUMBERS: list[Case] = [
    ("minimum", _typed("integer", minimum=3), [2, 3, 4, 10, 30, -3, 299]),
    ("minimum", _typed("number", minimum=-1.5), [-1.6, -1.5, -1.49, 0, 7.25, -2]),
    ("maximum", _typed("integer", maximum=100), [99, 100, 101, -5, 1000, 0]),
    ("maximum", _typed("number", maximum=0.5), [0.5, 0.51, 0.49, -3.25, 1]),
    ("minimum", _typed("integer", minimum=18, maximum=120), [17, 18, 99, 119, 120, 121, 1, 200]),
    ("exclusiveMinimum", _typed("integer", exclusiveMinimum=0), [0, 1, -1, 10]),
    ("exclusiveMinimum", _typed("number", exclusiveMinimum=1), [1, 1.1, 0.9, 2]),
    ("exclusiveMaximum", _typed("integer", exclusiveMaximum=10), [9, 10, 11, -10]),
    ("exclusiveMaximum", _typed("number", exclusiveMaximum=2.5), [2.4, 2.5, 2.6]),
    ("type", _typed("number"), [1e20, 1e-7, -0.0, 123456789012345678901234567890]),
    ("minimum", _typed("integer", minimum=10**15), [10**15 - 1, 10**15, 10**16]),
    ("minimum", {"minimum": 3}, [2, 3, "a", None, 2.5]),
    ("multipleOf", _typed("integer", multipleOf=5), [0, 5, 12, 15, -10, 7]),
    ("multipleOf", _typed("integer", multipleOf=7, minimum=0, maximum=50), [7, 49, 50, 56, 0]),
]

STRINGS: list[Case] = [
    ("minLength", _typed("string", minLength=2), ["", "a", "ab", "é", "éé", "世界"]),
    ("maxLength", _typed("string", maxLength=3), ["", "abc", "abcd", "世界世", "世界世界"]),
    ("minLength", _typed("string", minLength=1, maxLength=2), ["", "a", "ab", "abc", "\n"]),
    ("pattern", _typed("string", pattern="^a+b$"), ["ab", "aab", "b", "abc", "xab"]),
    ("pattern", _typed("string", pattern="b"), ["b", "abc", "ac", ""]),
    ("pattern", _typed("string", pattern=r"^\d{3}-\d{4}$"), ["555-0199", "555-019", "5550199"]),
    ("pattern", _typed("string", pattern="^[A-Z]{2}"), ["DE", "DEx", "De", "D"]),
    ("pattern", _typed("string", pattern=r"^(\([0-9]{3}\))?[0-9]$"), ["1", "(123)1", "(12)1"]),
    ("pattern", _typed("string", pattern=r'^"quoted"$'), ['"quoted"', "quoted"]),
    ("format", _typed("string", format="date"), ["2024-02-28", "2024-13-01", "2024-2-1", "x"]),
    ("format", _typed("string", format="time"), ["12:30:00Z", "25:00:00Z", "12:30", "x"]),
    ("format", _typed("string", format="date-time"),
     ["2024-02-28T12:30:00Z", "2024-02-28T12:30:00+01:00", "2024-02-28", "x"]),
    ("format", _typed("string", format="email"), ["a@b.de", "a.b", "x"]),
    ("format", _typed("string", format="uuid"),
     ["123e4567-e89b-12d3-a456-426614174000", "123e4567", "x"]),
    ("format", _typed("string", format="ipv4"), ["127.0.0.1", "256.0.0.1", "1.2.3", "x"]),
    ("format", _typed("string", format="ipv6"),
     ["::1", "2001:db8::8a2e:370:7334", "12345::", "x"]),
    ("format", _typed("string", format="date"), ["2024-02-29", "2024-04-31", "0000-00-00"]),
    ("format", _typed("string", format="hostname"), ["a.de", "-a", "a..b", "x"]),
    ("format", _typed("string", format="duration"), ["P1D", "PT1H", "P", "1D"]),
    ("format", _typed("string", format="uri"), ["http://a.de/b?c#d", "a b"]),
    ("pattern", _typed("string", pattern="^a.c$"), ["abc", "a\nc", "aéc", "ac"]),
    ("pattern", _typed("string", pattern=r"^\S+$"), ["ab", "a b", "é"]),
    ("pattern", _typed("string", pattern="^(?=a)b"), ["b"]),
    ("pattern", _typed("string", pattern="^a+$", maxLength=2), ["a", "aa", "aaa"]),
    ("format", _typed("string", format="no-such-format"), ["x", "y"]),
]  # fmt: skip

ARRAYS: list[Case] = [
    ("items", _typed("array", items=INTEGER), [[], [1], [1, 2, 3], ["a"], [1, None], {}]),
    ("items", _typed("array", items=False), [[], [1]]),
    ("items", _typed("array", items=_typed("array", items=STRING)), [[["a"], []], ["a"], [[1]]]),
    ("minItems", _typed("array", items=INTEGER, minItems=2), [[], [1], [1, 2], [1, 2, 3]]),
    ("maxItems", _typed("array", items=INTEGER, maxItems=2), [[], [1, 2], [1, 2, 3]]),
    ("minItems", _typed("array", minItems=1, maxItems=1), [[], [None], [[]], [1, 2]]),
    ("prefixItems", _typed("array", prefixItems=[INTEGER, STRING]),
     [[], [1], [1, "a"], [1, 2], ["a"], [1, "a", None]]),
    ("prefixItems", _typed("array", prefixItems=[INTEGER, STRING], items=False, minItems=2),
     [[1, "a"], [1], [1, "a", 2]]),
    ("uniqueItems", _typed("array", items=INTEGER, uniqueItems=True), [[1, 2], [1, 1]]),
    ("items", {"items": INTEGER}, [[1], ["a"], "a", 1, {}]),
    ("unevaluatedItems", _typed("array", unevaluatedItems=False), [[], [1]]),
    ("contains", _typed("array", contains=INTEGER), [[1], ["a"], ["a", 1]]),
]  # fmt: skip

OBJECTS: list[Case] = [
    ("properties", _object({"a": INTEGER}), [{}, {"a": 1}, {"a": "x"}, {"b": 2}, {"a": 1, "b": 2}]),
    ("properties", {"properties": {"a": INTEGER}}, [{}, {"a": 1}, {"a": "x"}, [], 3, "s"]),
    ("required", _object({"a": INTEGER, "b": STRING}, ["b"]),
     [{"b": "x"}, {"a": 1, "b": "x"}, {"a": 1}, {}, {"b": 1}]),
    ("required", OBJECT | {"required": ["x"]}, [{}, {"x": None}, {"y": 1}, {"x": 2, "y": 1}]),
    ("additionalProperties", _object({"a": INTEGER}, **CLOSED),
     [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
    ("additionalProperties", OBJECT | {"additionalProperties": INTEGER},
     [{}, {"x": 1}, {"x": 1, "y": 2}, {"x": "a"}]),
    ("additionalProperties", _object({"a": STRING}, additionalProperties=BOOLEAN),
     [{"a": "x", "b": True}, {"a": "x", "b": 1}, {"a": 1}]),
    ("patternProperties", OBJECT | {"patternProperties": {"^x": INTEGER}} | CLOSED,
     [{}, {"x1": 1}, {"x1": "a"}, {"y": 1}]),
    ("properties", _object({"a": False, "b": INTEGER}), [{}, {"a": 1}, {"b": 1}]),
    ("dependentSchemas", OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}}, [{"a": 1}]),
    ("minProperties", OBJECT | {"minProperties": 1}, [{}, {"a": 1}]),
    ("maxProperties", OBJECT | {"maxProperties": 1}, [{}, {"a": 1}, {"a": 1, "b": 2}]),
    ("propertyNames", OBJECT | {"propertyNames": {"pattern": "^a"}}, [{"a": 1}, {"b": 1}]),
    ("dependentRequired", _object({"a": INTEGER}, dependentRequired={"a": ["b"]}),
     [{}, {"a": 1}, {"a": 1, "b": 2}]),
    ("properties", _object({"person": _object({"name": STRING, "tags": _typed(
        "array", items={"enum": ["a", "b"]})}, ["name"], **CLOSED)}, ["person"], **CLOSED),
     [{"person": {"name": "x"}}, {"person": {"name": "x", "tags": ["a", "b"]}},
      {"person": {"tags": []}}, {"person": {"name": "x", "tags": ["c"]}}, {}]),
    ("properties", _object({"a b": INTEGER, 'q"': INTEGER, "é": INTEGER}, ["a b", 'q"', "é"]),
     [{"a b": 1, 'q"': 2, "é": 3}, {"a b": 1}]),
]  # fmt: skip

TOGETHER: list[Case] = [
    ("anyOf", {"anyOf": [INTEGER, STRING]}, ANYTHING),
    ("anyOf", {"anyOf": [_typed("integer", minimum=5), _typed("string", maxLength=1)]},
     [4, 5, 6, "", "a", "ab", None]),
    ("anyOf", _object({"v": {"anyOf": [{"type": "null"}, _typed("array", items=INTEGER)]}}, ["v"]),
     [{"v": None}, {"v": [1]}, {"v": ["a"]}, {"v": 1}]),
    ("oneOf", {"oneOf": [INTEGER, STRING]}, ANYTHING),
    ("oneOf", {"oneOf": [_typed("integer", minimum=0), _typed("integer", maximum=5)]}, [-1, 3, 9]),
    ("oneOf", {"oneOf": [_object({"k": {"const": "a"}, "n": INTEGER}, ["k", "n"], **CLOSED),
                         _object({"k": {"const": "b"}, "s": STRING}, ["k", "s"], **CLOSED)]},
     [{"k": "a", "n": 1}, {"k": "b", "s": "x"}, {"k": "a", "s": "x"}, {"k": "c"}]),
    ("allOf", {"allOf": [_typed("integer", minimum=0), _typed("integer", maximum=9)]},
     [-1, 0, 5, 9, 10, "a"]),
    ("allOf", {"allOf": [_object({"a": INTEGER}, ["a"]), _object({"b": STRING}, ["b"])]},
     [{"a": 1, "b": "x"}, {"a": 1}, {"b": "x"}, {"a": "1", "b": "x"}]),
    ("allOf", {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]}, [1, 2, 3, 4]),
    ("allOf", {"allOf": [{"anyOf": [INTEGER, STRING]}], "type": "integer"}, [1, "a", None]),
    ("not", {"not": INTEGER}, [1, "a"]),
    ("if", {"if": INTEGER, "then": {"minimum": 3}}, [1, 3, "a"]),
    ("$ref", {"$defs": {"n": INTEGER}, "$ref": "#/$defs/n"}, ANYTHING),
    ("$ref", _object({"p": {"$ref": "#/$defs/pair"}}, ["p"]) | {"$defs": {
        "pair": _typed("array", items=INTEGER, minItems=2, maxItems=2)}},
     [{"p": [1, 2]}, {"p": [1]}, {"p": 1}, {}]),
    ("$ref", _object({"v": INTEGER, "next": {"$ref": "#"}}, ["v"], **CLOSED),
     [{"v": 1}, {"v": 1, "next": {"v": 2}}, {"v": 1, "next": {"v": 2, "next": {"v": 3}}},
      {"v": 1, "next": {}}, {"v": 1, "next": 2}]),
    ("$ref", {"$defs": {"tree": _typed("array", items={"$ref": "#/$defs/tree"})},
              "$ref": "#/$defs/tree"}, [[], [[]], [[[]], []], [1], [[1]]]),
    ("$ref", {"$ref": "http://example.com/schema.json"}, [1]),
    ("$ref", {"$ref": "#/$defs/nobody"}, [1]),
    ("$anchor", {"$defs": {"n": {"$anchor": "number", "type": "integer"}}, "$ref": "#number"},
     [1, "a"]),
    ("allOf", {"allOf": [{"$ref": "#/$defs/n"}, {"minimum": 5}], "$defs": {"n": INTEGER}},
     [4, 5, "a"]),
    ("anyOf", _object({"a": INTEGER}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
     [{"a": 1}, {"b": 1}, {}, {"c": 1}]),
    ("const", {"type": "string", "const": 3}, [3, "3"]),
    ("enum", {"enum": [1, 2, 3, 10], "minimum": 2}, [1, 2, 10]),
    ("definitions", {"definitions": {"s": STRING}, "type": "array",
                     "items": {"$ref": "#/definitions/s"}}, [["a"], [1], []]),
    ("unevaluatedProperties", _object({"a": INTEGER}, unevaluatedProperties=False),
     [{"a": 1}, {"b": 1}]),
    ("title", {"title": "T", "description": "d", "default": 1, "examples": [2], "$comment": "c",
               "type": "integer"}, [1, "a"]),
    ("no-such-keyword", {"type": "integer", "no-such-keyword": 3}, [1, "a"]),
]  # fmt: skip

CASES = TYPES + VALUES + NUMBERS + STRINGS + ARRAYS + OBJECTS + TOGETHER
