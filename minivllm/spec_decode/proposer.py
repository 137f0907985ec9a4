"""Proposers of draft tokens, and the Drafter that cuts drafts which a grammar forbids.

A guess is never trusted: the target model draws its own token in every place, and a draft only says
which places can be computed in one step. So a bad proposer costs time, and no text changes.
(vLLM: vllm/v1/spec_decode/, and ``GPUModelRunner.propose_draft_token_ids``)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

from minivllm.config.speculative import SpeculativeConfig, num_useful_drafts
from minivllm.logger import init_logger
from minivllm.request import RequestStatus, Sequence
from minivllm.spec_decode.ngram import NgramIndex
from minivllm.utils.validation import is_int

logger = init_logger(__name__)


class Proposer(Protocol):
    """Interface of a proposer; one of your own goes into ``speculative_config={"model": ...}``."""

    def propose(self, seqs: list[Sequence]) -> list[list[int]]:
        """Propose draft tokens for sequences.

        Args:
            seqs: each has just got a token and goes on; only to be looked at.

        Returns:
            For each of them the draft tokens that may follow its ``token_ids``, or none.
        """


class HasTokens(Protocol):
    """A sequence, as the scheduler knows it or as a worker does."""

    token_ids: list[int]


class NgramProposer:
    """Drafts from the sequence's own text; see ``ngram.propose``, to which it is equal.

    Args:
        min_n, max_n: the shortest and the longest n-gram that is looked up.
        k: how many tokens to draft.
    """

    def __init__(self, min_n: int, max_n: int, k: int):
        self.min_n, self.max_n, self.k = min_n, max_n, k
        self._indices: WeakKeyDictionary[HasTokens, NgramIndex] = WeakKeyDictionary()

    def propose(self, seqs: Iterable[HasTokens]) -> list[list[int]]:
        """Look drafts up: see ``Proposer.propose``."""
        return [self._propose(seq) for seq in seqs]

    def _propose(self, seq: HasTokens) -> list[int]:
        index = self._indices.get(seq)
        if index is None:
            index = self._indices[seq] = NgramIndex(self.max_n)
        for token_id in seq.token_ids[index.num_tokens :]:
            index.append(token_id)
        if index.found_length < self.min_n:
            return []
        return seq.token_ids[index.first_end : index.first_end + self.k]


def ngram_proposer(config: SpeculativeConfig) -> NgramProposer | None:
    """The n-gram proposer of a config; None if it uses only a draft model."""
    low, high = config.prompt_lookup_min, config.prompt_lookup_max
    if low is None or high is None:
        return None
    return NgramProposer(low, high, config.num_speculative_tokens)


class Drafter:
    """Calls the proposer, and cuts drafts that cannot come.

    Args:
        config: who guesses, and how many tokens.
        max_model_len: the longest sequence.
        vocab_size: token ids are below it.
        placeholder_ids: of tokens that stand for pictures or sound, which are never drafted.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        max_model_len: int,
        vocab_size: int,
        placeholder_ids: frozenset[int] = frozenset(),
    ):
        self.k = config.num_speculative_tokens
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.placeholder_ids = placeholder_ids
        self.proposer: Proposer | None = None  # where a draft model guesses, beside the target
        if config.method == "custom_class":
            self.proposer = config.model
        elif config.method == "ngram":
            self.proposer = ngram_proposer(config)
        self._has_said_beams = False

    def draft(
        self, updated: Iterable[Sequence], model_drafts: Mapping[str, list[int]]
    ) -> dict[str, list[int]]:
        """Drafts by sequence id, for the sequences that a step has given a token.

        Beams have none: which of them go on is only known when all have their token.

        Args:
            updated: these sequences.
            model_drafts: what a draft model has guessed in that step, by sequence id.
        """
        seqs = [seq for seq in updated if self._goes_on(seq)]
        proposed: Mapping[str, list[int]] = model_drafts
        if self.proposer is not None:
            proposed = self._ask(self.proposer, [seq for seq in seqs if not _forced(seq)])
        drafts = {}
        for seq in seqs:
            # what a grammar leaves no choice about need not be guessed
            token_ids = _forced(seq) or proposed.get(seq.seq_id, [])
            token_ids = self._before_placeholders(token_ids[: self._room(seq)])
            if seq.grammar is not None:
                token_ids = seq.grammar.validate_tokens(token_ids)
            if token_ids:
                drafts[seq.seq_id] = token_ids
        return drafts

    def _before_placeholders(self, token_ids: list[int]) -> list[int]:
        """Drafts up to the first that is a placeholder: a copied one would have no embedding."""
        stops = (n for n, token_id in enumerate(token_ids) if token_id in self.placeholder_ids)
        return token_ids[: next(stops, None)]

    def _goes_on(self, seq: Sequence) -> bool:
        if seq.request.beam_params is not None:
            if not self._has_said_beams:
                logger.info("Beams are searched without speculation.")
                self._has_said_beams = True
            return False
        return seq.status == RequestStatus.RUNNING and self._room(seq) > 0

    def _room(self, seq: Sequence) -> int:
        max_tokens = seq.request.sampling_params.max_tokens
        return num_useful_drafts(
            self.k, seq.num_tokens, seq.num_output_tokens, max_tokens, self.max_model_len
        )

    def _ask(self, proposer: Proposer, seqs: list[Sequence]) -> dict[str, list[int]]:
        """Call the proposer. If it fails, no sequence gets drafts, and the step goes on without."""
        if not seqs:
            return {}
        try:
            proposed = [list(token_ids) for token_ids in proposer.propose(seqs)]
            ok = all(is_int(i, 0) and i < self.vocab_size for ids in proposed for i in ids)
            if len(proposed) != len(seqs) or not ok:
                raise ValueError(
                    f"propose must return a list for each of {len(seqs)} sequences, of token ids "
                    f"from 0 to {self.vocab_size - 1}, got {proposed!r}."
                )
        except Exception:  # a guess is never needed
            logger.exception("The proposer failed; this step has no drafts of its.")
            return {}
        return {seq.seq_id: ids for seq, ids in zip(seqs, proposed, strict=True)}


def _forced(seq: Sequence) -> list[int]:
    return [] if seq.grammar is None else seq.grammar.forced_tokens()
