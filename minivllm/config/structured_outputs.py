"""StructuredOutputsParams of a request, and StructuredOutputsConfig of the engine.

The machinery is in ``structured_output/``. (vLLM: vllm/sampling_params.py,
vllm/config/structured_outputs.py)
"""

from __future__ import annotations

import json as json_lib
import re
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from minivllm.logger import init_logger, without_warnings
from minivllm.utils.validation import (
    InvalidParameter,
    check,
    is_number,
    is_one_of,
    is_text,
    known_names_only,
    shown,
)
from minivllm.utils.vllm_arguments import takes_vllm_defaults

logger = init_logger(__name__)

KINDS = ("json", "regex", "choice", "grammar", "json_object")
# "fsm" is the automaton of this package, "guidance" the llguidance library, "auto" either.
BACKENDS = ("auto", "fsm", "guidance")
OTHER_BACKENDS = ("xgrammar", "outlines", "lm-format-enforcer")  # vLLM's: they become "auto"
MAX_NESTING = 64  # levels of a schema, as in vLLM


@takes_vllm_defaults("StructuredOutputsParams")
@known_names_only
@dataclass(repr=False)
class StructuredOutputsParams:
    """The form that the text of one request must have: exactly one of the first five.

    Args:
        json: a JSON schema, as text or as a dict, or a pydantic class.
        regex: a regular expression that the whole text matches; ``\\d``, ``\\w`` and ``\\s`` are
            ASCII.
        choice: the text is one of these.
        grammar: a context-free grammar, in Lark's or (with ``::=``) in GBNF's notation.
        json_object: True: any JSON object.
        disable_any_whitespace: no blanks between the tokens of a JSON text.
        disable_additional_properties: objects of a schema have no properties but those it names.
        whitespace_pattern: a regular expression for what may stand between the tokens of a JSON
            text; None allows one blank.

    Raises:
        ValueError: unless exactly one kind is given, and it is well formed.
    """

    json: str | dict | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    _backend: str | None = field(default=None, init=False)  # 0.6.6 lets a request choose it

    def __post_init__(self):
        schema: Any = self.json
        if hasattr(schema, "model_json_schema"):
            self.json = _schema_of_class(schema)
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(
                "You can only use one kind of structured outputs constraint but multiple are "
                f"specified: {', '.join(given)}."
            )
        if not given:
            raise ValueError(
                f"You must use one kind of structured outputs constraint: {', '.join(KINDS)}."
            )
        self.kind = given[0]
        self._check_form(self.kind, getattr(self, self.kind))
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        if self.whitespace_pattern is not None:
            _check_whitespace_pattern(self.whitespace_pattern)

    def _check_form(self, kind: str, value: Any) -> None:
        if kind == "json":
            check_schema("json", value)
        elif kind == "json_object":
            check(value is True, kind, value, "True, or None")
        elif kind == "choice":
            ok = isinstance(value, (list, tuple)) and len(value) > 0
            ok = ok and all(is_text(text) for text in value)
            check(ok, kind, value, "a list of at least one string, without lone surrogates")
        else:  # of a grammar blanks say nothing, of a regular expression they do
            ok = is_text(value) and (value.strip() if kind == "grammar" else value) != ""
            check(ok, kind, value, "a non-empty string without lone surrogates")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        shown = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        )
        return f"StructuredOutputsParams({', '.join(shown)})"


@takes_vllm_defaults("StructuredOutputsConfig")
@known_names_only
@dataclass
class StructuredOutputsConfig:
    """The engine's defaults for structured outputs: ``structured_outputs_config={...}``.

    Args:
        backend: "fsm", "guidance", or "auto": "fsm" for choices and for the regular expressions
            that it can read, "guidance" for all else. vLLM's other names mean "auto".
        disable_any_whitespace, disable_additional_properties: for all requests; see
            ``StructuredOutputsParams``.

    Raises:
        ValueError: for an unknown name or value.
    """

    backend: str = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def __post_init__(self):
        self.backend = check_backend("backend", self.backend)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")


def make_structured_outputs_config(
    config: StructuredOutputsConfig | dict | None,
) -> StructuredOutputsConfig:
    """Make the config from the engine's argument. Raises ``ValueError`` if it is bad."""
    if isinstance(config, StructuredOutputsConfig):
        return config
    ok = config is None or isinstance(config, dict)
    check(ok, "structured_outputs_config", config, "a dict, such as {'backend': 'guidance'}")
    try:
        return StructuredOutputsConfig(**(config or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"structured_outputs_config: {error}") from error


def check_backend(name: str, backend: Any) -> str:
    """The backend's name here, for any of vLLM's names (0.6.6 has options behind a colon)."""
    short = backend.split(":")[0] if isinstance(backend, str) else backend
    ok = is_one_of(short, (*BACKENDS, *OTHER_BACKENDS))
    check(ok, name, backend, f"one of {', '.join((*BACKENDS, *OTHER_BACKENDS))}")
    if short not in OTHER_BACKENDS:
        return short
    _say_what_is_used(short)
    return "auto"


@cache
def _say_what_is_used(backend: str) -> None:
    """Log which backend is used instead; once for each name."""
    logger.info(
        "The backend %s is not used here: the package's own automaton serves choices and regular "
        "expressions, llguidance the rest.",
        backend,
    )


def check_schema(name: str, schema: Any) -> None:
    """Raise ``InvalidParameter`` naming a field unless it is a JSON schema that can be written.

    Args:
        name: the field.
        schema: a dict, a bool, or the text of one.
    """
    wanted = "a JSON schema: a dict, its text, or a pydantic class"
    if isinstance(schema, str):
        check(is_text(schema), name, schema, f"{wanted}, without lone surrogates")
        try:
            schema = json_lib.loads(schema)
        except (ValueError, RecursionError) as error:
            text = f"{name} must be {wanted}, got {shown(schema)} ({error})."
            raise InvalidParameter(text, name) from error
    check(isinstance(schema, (dict, bool)), name, schema, wanted)
    level = [schema]
    for _ in range(MAX_NESTING):
        level = [part for item in level for part in _parts(name, item)]
    ok = not any(_parts(name, item) or isinstance(item, (dict, list)) for item in level)
    check(ok, name, schema, f"a schema of at most {MAX_NESTING} nested levels")


def _parts(name: str, item: Any) -> list:
    """The keys and values of a dict, or the items of a list. Raises for what JSON cannot hold."""
    if isinstance(item, dict):
        for key in item:
            ok = key is None or isinstance(key, (str, int, float))
            check(ok, name, key, "a schema of JSON's own types, and so its keys")
        return [*item, *item.values()]
    if isinstance(item, (list, tuple)):
        return list(item)
    if isinstance(item, str):
        check(is_text(item), name, item, "a schema of strings without lone surrogates")
    elif isinstance(item, (int, float)):
        ok = isinstance(item, bool) or is_number(item)
        check(ok, name, item, "a schema of numbers that are finite as floats")
    else:
        check(item is None, name, item, "a schema of JSON's own types")
    return []


def _schema_of_class(model: Any) -> Any:
    """The JSON schema of a pydantic class."""
    try:
        return model.model_json_schema()
    except Exception as error:
        text = f"json must be a class with a JSON schema, got {shown(model)} ({error})."
        raise InvalidParameter(text, "json") from error


def _check_whitespace_pattern(pattern: Any) -> None:
    name = "whitespace_pattern"
    wanted = "a regular expression without lone surrogates, or None"
    check(is_text(pattern), name, pattern, wanted)
    try:
        with without_warnings():
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        text = f"{name} must be {wanted}, got {shown(pattern)} ({error})."
        raise InvalidParameter(text, name) from error
