"""Backend "guidance": the llguidance library, for JSON schemas and context-free grammars.

A nested text has no finite automaton, it needs a stack: llguidance runs an Earley parser over a
lexer of derivatives. It refuses what it cannot do. (vLLM: backend_guidance.py)
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from minivllm.logger import init_logger
from minivllm.structured_output.backend_types import StructuredOutputGrammar
from minivllm.structured_output.vocabulary import Vocabulary
from minivllm.structured_outputs import StructuredOutputsParams

logger = init_logger(__name__)

_ONE_BLANK = " ?"  # between the tokens of a JSON text; "any" lets a model write blanks for ever


class _Tokenizer:
    """The tokenizer interface of llguidance. A token that is no text must have some name."""

    def __init__(self, vocabulary: Vocabulary):
        tokens = list(enumerate(vocabulary.tokens))
        self.tokens = [f"<|{i}|>".encode() if token is None else token for i, token in tokens]
        self.special_token_ids = [i for i, token in tokens if token is None]
        self.eos_token_id = min(vocabulary.eos_token_ids or self.special_token_ids[:1] or {0})
        self.bos_token_id = None
        self.encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text is wanted, not bytes")
        return self.encode(text)


class GuidanceGrammar(StructuredOutputGrammar):
    """The llguidance parser of one sequence.

    Args:
        matcher: an ``llguidance.LLMatcher``.
        stop_token_ids: where the text may end, these may come.
        eos_token_id: what the matcher takes for the end.
    """

    def __init__(self, matcher, stop_token_ids: frozenset[int], eos_token_id: int):
        super().__init__(stop_token_ids)
        self.matcher = matcher
        self.eos_token_id = eos_token_id

    def fork(self, stop_token_ids: frozenset[int] | None = None) -> GuidanceGrammar:
        stops = self.stop_token_ids if stop_token_ids is None else stop_token_ids
        child = GuidanceGrammar(self.matcher.deep_copy(), stops, self.eos_token_id)
        child._num_after_end = self._num_after_end
        return child

    def may_end(self) -> bool:
        return self.matcher.is_accepting()

    def forced_tokens(self) -> list[int]:
        return [] if self.is_terminated() else self.matcher.compute_ff_tokens()

    def _advance(self, token: int) -> bool:
        return token != self.eos_token_id and self.matcher.try_consume_tokens([token]) == 1

    def _take_back(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    def _fill(self, row: np.ndarray) -> None:
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self.matcher.is_error():  # a limit of its own; nothing is allowed, and that is reported
            logger.error("The grammar can go no further: %s", self.matcher.get_error())
            row[:] = 0
        eos = self.eos_token_id
        row.view(np.uint32)[eos >> 5] &= ~np.uint32(1 << (eos & 31))  # the caller's to set


class GuidanceBackend:
    """Compiles every kind for one vocabulary.

    Raises:
        ValueError: naming the extra, if llguidance is not installed.
    """

    def __init__(self, vocabulary: Vocabulary):
        try:
            import llguidance
        except ImportError as error:
            raise ValueError(
                "JSON schemas and grammars need llguidance; install minivllm[structured]."
            ) from error
        tokenizer = _Tokenizer(vocabulary)
        self._lib = llguidance
        self.eos_token_id = tokenizer.eos_token_id
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokenizer),
            n_vocab=len(vocabulary),
            eos_token=self.eos_token_id,
        )

    def compile_grammar(self, params: StructuredOutputsParams) -> GuidanceGrammar:
        """Compile a grammar, at its start.

        Raises:
            ValueError: in llguidance's words, if it cannot be done or nothing satisfies it.
        """
        grammar = self._serialize(params)
        matcher = self._lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        reason = matcher.get_error().strip() if matcher.is_error() else ""
        if not reason:
            matcher.compute_bitmask()  # a $ref that leads only to itself is found out here
            if matcher.is_error():
                reason = f"nothing can come first: {matcher.get_error().splitlines()[0]}"
        if reason:
            shown = str(getattr(params, params.kind))
            shown = shown if len(shown) <= 200 else shown[:197] + "..."
            raise ValueError(
                f"{params.kind} must be one that the backend 'guidance' can follow, got "
                f"{shown!r} ({reason})."
            )
        return GuidanceGrammar(matcher, frozenset(), self.eos_token_id)

    def _serialize(self, params: StructuredOutputsParams) -> str:
        """The grammar in llguidance's own format."""
        lib, value = self._lib, getattr(params, params.kind)
        if params.kind == "choice":
            return lib.grammar_from("choice", json.dumps(list(value)))
        if params.kind == "regex":
            # \d, \w and \s are ASCII, as in the other backend
            return lib.grammar_from("lark", f"start: /{lib.regex_to_lark(value, 'dws')}/")
        if params.kind == "grammar":
            return lib.grammar_from("grammar", value)
        return lib.LLMatcher.grammar_from_json_schema(_schema(params), defaults=_blanks(params))


def _schema(params: StructuredOutputsParams) -> str:
    if params.kind == "json_object":
        return '{"type": "object"}'
    schema = json.loads(params.json) if isinstance(params.json, str) else params.json
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return json.dumps(_closed(schema) if params.disable_additional_properties else schema)


def _blanks(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    pattern = params.whitespace_pattern
    return {"whitespace_pattern": _ONE_BLANK if pattern is None else pattern}


def _closed(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` in each object that has properties."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) or "patternProperties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
