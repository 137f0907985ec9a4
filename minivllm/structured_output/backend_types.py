"""StructuredOutputGrammar: the interface of a backend's grammars, and their stop tokens.

(vLLM: vllm/v1/structured_output/backend_types.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class StructuredOutputGrammar(ABC):
    """The state of one sequence in its grammar, and the tokens that may come next.

    Tokens that stop the sequence are no text, even if they have one: they may come exactly where
    the text may end. Behind such a token (a request can ignore it) anything goes.

    Args:
        stop_token_ids: end-of-sequence tokens, and those of the request.
    """

    def __init__(self, stop_token_ids: frozenset[int]):
        self.stop_token_ids = stop_token_ids
        self._num_after_end = 0  # tokens since the text ended, the stop token included

    def accept_tokens(self, tokens: list[int]) -> bool:
        """Advance by tokens. Returns False, with nothing changed, if one of them is forbidden."""
        for done, token in enumerate(tokens):
            if not self._accept(token):
                self.rollback(done)
                return False
        return True

    def _accept(self, token: int) -> bool:
        if self.is_terminated() or (token in self.stop_token_ids and self.may_end()):
            self._num_after_end += 1
            return True
        return token not in self.stop_token_ids and self._advance(token)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest prefix of some tokens that could be accepted. Nothing changes."""
        done = 0
        for token in tokens:
            if self.is_terminated() or not self._accept(token):
                break
            done += 1
        self.rollback(done)
        return tokens[:done]

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens that were accepted."""
        behind = min(num_tokens, self._num_after_end)
        self._num_after_end -= behind
        if num_tokens > behind:
            self._take_back(num_tokens - behind)

    def fill_bitmask(self, bitmask: np.ndarray, index: int) -> None:
        """Write one bit per token: 1 if it may come next.

        Args:
            bitmask: int32 ``[rows, words]``; token ``t`` is bit ``t % 32`` of word ``t // 32``.
            index: the row to write.
        """
        row = bitmask[index]
        if self.is_terminated():
            row[:] = -1
            return
        self._fill(row)
        may_end = self.may_end()
        for token in self.stop_token_ids:
            word = token >> 5
            bit = 1 << (token & 31)
            if bool(row.item(word) & bit) != may_end:  # most often it is as it should be
                row.view(np.uint32)[word] ^= np.uint32(bit)

    def is_terminated(self) -> bool:
        """True once a stop token has ended the text."""
        return self._num_after_end > 0

    @abstractmethod
    def fork(self, stop_token_ids: frozenset[int] | None = None) -> StructuredOutputGrammar:
        """Copy a grammar at its state; the copy may have other stop tokens."""

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """Jump-forward tokens: what must come next, in its usual tokenization."""

    @abstractmethod
    def may_end(self) -> bool:
        """True if the text so far is complete."""

    @abstractmethod
    def _advance(self, token: int) -> bool:
        """Advance by a token of text. Returns False if it is forbidden."""

    @abstractmethod
    def _take_back(self, num_tokens: int) -> None:
        """Undo the last ``_advance`` calls."""

    @abstractmethod
    def _fill(self, row: np.ndarray) -> None:
        """Write the bits of tokens that are text; all others are 0."""


def num_words(vocab_size: int) -> int:
    """Number of 32-bit words that hold one bit per token."""
    return -(-vocab_size // 32)
