"""StructuredOutputManager: compiles parameters to grammars, and fills bitmasks from them.

(vLLM: vllm/v1/structured_output/__init__.py)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from minivllm.config.structured_outputs import StructuredOutputsConfig, StructuredOutputsParams
from minivllm.request import Request, Sequence
from minivllm.request_protocols import Grammar
from minivllm.scheduling.output import GrammarOutput, SchedulerOutput
from minivllm.structured_output.backend_fsm import FsmBackend
from minivllm.structured_output.backend_guidance import GuidanceBackend
from minivllm.structured_output.backend_types import StructuredOutputGrammar, num_words
from minivllm.structured_output.regex import UnsupportedRegex
from minivllm.structured_output.vocabulary import Vocabulary

_MAX_GRAMMARS = 64  # compiled ones that are kept


class StructuredOutputManager:
    """Compiles each grammar once, and fills a step's bitmask.

    Args:
        tokenizer: a fast Hugging Face tokenizer, or None, and then there are no grammars.
        vocab_size: how many logits the model has.
        eos_token_ids: the model's end-of-sequence tokens.
        config: what holds where a request says nothing.
    """

    def __init__(
        self,
        tokenizer,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        config: StructuredOutputsConfig | None = None,
    ):
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.config = config or StructuredOutputsConfig()
        self._compiled = lru_cache(_MAX_GRAMMARS)(self._compile)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.from_tokenizer(self.tokenizer, self.vocab_size, self.eos_token_ids)

    @cached_property
    def fsm(self) -> FsmBackend:
        return FsmBackend(self.vocabulary)

    @cached_property
    def guidance(self) -> GuidanceBackend:
        return GuidanceBackend(self.vocabulary)

    def compile_grammar(
        self, params: StructuredOutputsParams, stop_token_ids: Iterable[int]
    ) -> StructuredOutputGrammar:
        """Compile a grammar, at its start; equal parameters are compiled once.

        Args:
            params: what the text must look like.
            stop_token_ids: what stops this request, end-of-sequence tokens included.

        Raises:
            ValueError: if it cannot be done, saying why.
        """
        if self.tokenizer is None:
            raise ValueError(
                "structured outputs need to know the tokens' text, and "
                "skip_tokenizer_init=True leaves no tokenizer."
            )
        value = getattr(params, params.kind)
        config = self.config
        return self._compiled(
            params._backend or config.backend,
            kind=params.kind,
            text=value if isinstance(value, str) else json.dumps(value),
            compact=params.disable_any_whitespace or config.disable_any_whitespace,
            closed=params.disable_additional_properties or config.disable_additional_properties,
            blanks=params.whitespace_pattern,
        ).fork(frozenset(stop_token_ids))

    def _compile(
        self, backend: str, kind: str, text: str, compact: bool, closed: bool, blanks: str | None
    ) -> StructuredOutputGrammar:
        value: Any = text if kind in ("regex", "grammar", "json") else json.loads(text)
        regular = kind in ("regex", "choice")
        if backend == "fsm" and not regular:
            raise ValueError(
                f"the backend must be 'auto' or 'guidance' for {kind}, got 'fsm', an automaton "
                "for regex and choice."
            )
        if regular and backend != "guidance":
            try:
                return self.fsm.compile_grammar(value)
            except UnsupportedRegex:
                if backend == "fsm":
                    raise
        return self.guidance.compile_grammar(
            StructuredOutputsParams(
                **{kind: value},
                disable_any_whitespace=compact,
                disable_additional_properties=closed,
                whitespace_pattern=blanks,
            )
        )

    def grammar_init(self, request: Request) -> None:
        """Compile a request's grammar, if it has one. Raises like ``compile_grammar``."""
        params = request.sampling_params
        if params is not None and params.structured_outputs is not None:
            request.grammar = self.compile_grammar(
                params.structured_outputs, params.all_stop_token_ids
            )
            (seq,) = request.seqs
            seq.grammar = request.grammar.fork()

    def grammar_output(
        self, scheduler_output: SchedulerOutput, sequences: dict[str, Sequence]
    ) -> GrammarOutput | None:
        """The bitmask of a step: a row for each token that a sequence with a grammar will get.

        Args:
            scheduler_output: what is computed.
            sequences: all that there are, by id. Siblings that begin in this step are not yet
                among them; they begin as the one does that they fork from.
        """
        seq_ids: list[str] = []
        grammars: list[tuple[Grammar, list[int]]] = []
        for seq_id in scheduler_output.num_scheduled_tokens:
            seq = sequences[seq_id]
            if seq.grammar is None or seq.num_computed_tokens < seq.num_tokens:
                continue
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(seq_id, [])
            seq_ids += [seq_id] * (1 + len(drafts))
            grammars.append((seq.grammar, drafts))
            for sibling_id in scheduler_output.forks.get(seq_id, ()):
                seq_ids.append(sibling_id)
                grammars.append((seq.grammar, []))
        return GrammarOutput(seq_ids, self.grammar_bitmask(grammars)) if seq_ids else None

    def grammar_bitmask(self, grammars: list[tuple[Grammar, list[int]]]) -> np.ndarray:
        """Fill a bitmask, int32 ``[rows, words]``: a row for each grammar, and behind each draft.

        Args:
            grammars: with the draft tokens that follow, all of which the grammar accepts.
        """
        num_rows = sum(1 + len(drafts) for _, drafts in grammars)
        bitmask = np.empty((num_rows, num_words(self.vocab_size)), dtype=np.int32)
        row = 0
        for grammar, drafts in grammars:
            grammar.fill_bitmask(bitmask, row)
            for draft in drafts:
                row += 1
                grammar.accept_tokens([draft])
                grammar.fill_bitmask(bitmask, row)
            grammar.rollback(len(drafts))
            row += 1
        return bitmask
