"""LogitsProcessor: the interface of what changes logits. SamplingState: its input per sequence.

(vLLM: vllm/v1/sample/logits_processor/interface.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from minivllm.sampling_params import SamplingParams


class DrawnDraft(NamedTuple):
    """A drawn draft token and its distribution, for the row that verifies it."""

    token_id: int
    probs: torch.Tensor  # float32 [vocab]


@dataclass(eq=False)
class SamplingState:
    """One sequence as the sampler knows it: parameters, seed and tokens."""

    sampling_params: SamplingParams
    seed: int  # of this sequence alone: with a position it gives the number that draws a token
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    # the draft that this row verifies, if it was drawn
    drawn_draft: DrawnDraft | None = field(default=None, init=False)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class LogitsProcessor(ABC):
    """Changes the logits of a batch, in the rows whose parameters ask for it; one per batch.

    Args:
        rows: those of ``rows_of``, at least one.
        states: of the batch, one per row.
        vocab_size: columns of the logits.
        device: where the logits are.
    """

    @abstractmethod
    def __init__(
        self,
        rows: list[int],
        states: Sequence[SamplingState],
        vocab_size: int,
        device: torch.device,
    ): ...

    @staticmethod
    @abstractmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        """The rows whose parameters ask for it."""

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> None:
        """Change float32 logits ``[n, vocab]`` in place."""

    def append(self, token_ids: torch.Tensor) -> None:  # noqa: B027
        """Add the tokens drawn, int64 ``[n]``, for processors that depend on the output."""
