"""Backend "guidance": the llguidance library, for JSON schemas and context-free grammars.

A nested text has no finite automaton, it needs a stack: llguidance runs an Earley parser over a
lexer of derivatives. It refuses what it cannot do. (vLLM: backend_guidance.py)
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

import numpy as np

from minivllm.config.structured_outputs import StructuredOutputsParams
from minivllm.logger import init_logger
from minivllm.structured_output.backend_types import StructuredOutputGrammar
from minivllm.structured_output.json_schema import closed, without_annotations
from minivllm.structured_output.vocabulary import Vocabulary
from minivllm.utils.validation import InvalidParameter, shown

logger = init_logger(__name__)

# Symbols of a grammar: about 6,000 properties, or 15,000 alternatives. It takes seconds to compile.
MAX_SYMBOLS = 50_000
_MAX_ITEMS = 1_000_000  # of the parser, for one mask: a tenth of a second
_TRIED_MASKS = 8  # before a grammar is taken
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
                "JSON schemas, grammars and what the backend 'fsm' cannot follow need llguidance; "
                "install minivllm[structured]."
            ) from error
        tokenizer = _Tokenizer(vocabulary)
        self._lib = llguidance
        self.eos_token_id = tokenizer.eos_token_id
        # A row of the parser has fewer items than its grammar has symbols, unless it is ambiguous.
        self.limits = llguidance.LLParserLimits(
            max_grammar_size=MAX_SYMBOLS, max_items_in_row=MAX_SYMBOLS, step_max_items=_MAX_ITEMS
        )
        self.vocab_size = len(vocabulary)
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokenizer),
            n_vocab=len(vocabulary),
            eos_token=self.eos_token_id,
        )

    def compile_grammar(self, params: StructuredOutputsParams) -> GuidanceGrammar:
        """Compile a grammar, at its start.

        Raises:
            ValueError: in llguidance's words, if it cannot be done, nothing satisfies it, or it is
                larger than a limit.
        """
        try:
            matcher = self._matcher(self._serialize(params))
            reason = matcher.get_error().strip() or self._try_masks(matcher)
        except ValueError as error:  # of what turns GBNF into Lark
            reason = str(error)
        if reason:
            name = self._field_to_blame(params)
            _refuse(name, getattr(params, name), reason)
        return GuidanceGrammar(matcher, frozenset(), self.eos_token_id)

    def _matcher(self, grammar: str):
        return self._lib.LLMatcher(self.tokenizer, grammar, log_level=0, limits=self.limits)

    def _try_masks(self, matcher) -> str:
        """The error of the first masks along a random text, or "".

        Some limits are of a mask: they are better found now than when the text has begun. So is a
        $ref that leads only to itself.
        """
        trial = matcher.deep_copy()
        rng = Random(0)
        for i in range(_TRIED_MASKS):
            mask = np.frombuffer(trial.compute_bitmask(), dtype=np.uint8)
            bits = np.unpackbits(mask, count=self.vocab_size, bitorder="little")
            if tokens := np.flatnonzero(bits).tolist():
                trial.try_consume_tokens([rng.choice(tokens)])
            if trial.is_error():
                where = "a text cannot go on" if i else "nothing can come first"
                return f"{where}: {trial.get_error().splitlines()[0]}"
            if trial.is_stopped():
                break
        return ""

    def _field_to_blame(self, params: StructuredOutputsParams) -> str:
        """The whitespace pattern, if it cannot be followed, or all is well without it."""
        pattern = params.whitespace_pattern
        if params.kind not in ("json", "json_object") or pattern is None:
            return params.kind
        if self._matcher(self._regex(pattern)).is_error():
            return "whitespace_pattern"
        usual = self._matcher(self._serialize(replace(params, whitespace_pattern=None)))
        bad = usual.is_error() or self._try_masks(usual)
        return params.kind if bad else "whitespace_pattern"

    def _regex(self, pattern: str) -> str:
        # \d, \w and \s are ASCII, as in the other backend
        lark = self._lib.regex_to_lark(pattern, "dws")
        return self._lib.grammar_from("lark", f"start: /{lark}/")

    def _serialize(self, params: StructuredOutputsParams) -> str:
        """The grammar in llguidance's own format."""
        lib = self._lib
        value = getattr(params, params.kind)
        if params.kind == "choice":
            # a terminal, which its lexer reads at once; alternatives of a rule are as many items
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
            return lib.grammar_from("lark", f"start: ONE\nONE: {texts}")
        if params.kind == "regex":
            return self._regex(value)
        if params.kind == "grammar":
            return lib.grammar_from("grammar", value)
        return lib.LLMatcher.grammar_from_json_schema(_schema(params), defaults=_blanks(params))


def _refuse(name: str, value: Any, reason: str) -> NoReturn:
    if "too large" in reason or "too big" in reason:
        reason = f"{reason.splitlines()[0]}; the limit is {MAX_SYMBOLS:,} symbols"
    wanted = f"{name} must be one that the backend 'guidance' can follow"
    raise InvalidParameter(f"{wanted}, got {shown(value)} ({reason}).", name)


def _schema(params: StructuredOutputsParams) -> str:
    if params.kind == "json_object":
        return '{"type": "object"}'
    schema = json.loads(params.json) if isinstance(params.json, str) else params.json
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    schema = without_annotations(schema)
    return json.dumps(closed(schema) if params.disable_additional_properties else schema)


def _blanks(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    pattern = params.whitespace_pattern
    return {"whitespace_pattern": _ONE_BLANK if pattern is None else pattern}
