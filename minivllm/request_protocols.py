"""Protocols of what a request carries and other rooms make: its grammar, and its beam search.

A request is above those rooms, and cannot name their classes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class Grammar(Protocol):
    """Place of one sequence in its grammar: see ``StructuredOutputGrammar``."""

    def fork(self) -> Grammar: ...

    def accept_tokens(self, tokens: list[int]) -> bool: ...

    def validate_tokens(self, tokens: list[int]) -> list[int]: ...

    def forced_tokens(self) -> list[int]: ...

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: np.ndarray, index: int) -> None: ...


class Beams(Protocol):
    """Search over the sequences of one request: see ``BeamSearch``."""

    completed: list[Any]  # sequences

    def num_held_back(self, seq: Any, scheduled: Container[str], num_more: int) -> int: ...

    def advance(self, logprobs: Mapping[str, Any], update: Any) -> None: ...
