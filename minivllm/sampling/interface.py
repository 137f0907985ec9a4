"""LogitsProcessor: the interface of what changes logits. SamplingState: its input per sequence.

(vLLM: vllm/v1/sample/logits_processor/interface.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from minivllm.sampling_params import SamplingParams


@dataclass(eq=False)
class SamplingState:
    """One sequence as the sampler knows it: parameters, tokens and random generator."""

    sampling_params: SamplingParams
    generator: Random  # of this sequence alone
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    # drawn by a step that was taken back: to be drawn again, so that no sequence's numbers shift
    returned_numbers: list[float] = field(default_factory=list, init=False)
    # the draft that this row verifies, if it was drawn: a DrawnDraft
    drawn_draft: Any = field(default=None, init=False)

    def draw_number(self) -> float:
        """The next number of this sequence's generator, in [0, 1)."""
        return self.returned_numbers.pop() if self.returned_numbers else self.generator.random()

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class LogitsProcessor(ABC):
    """Changes the logits of a batch, in the rows whose parameters ask for it; one per batch."""

    @classmethod
    @abstractmethod
    def of(
        cls, states: Sequence[SamplingState], vocab_size: int, device: torch.device
    ) -> LogitsProcessor | None:
        """The processor of a batch, one state per row; None if no row asks for it."""

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> None:
        """Change float32 logits ``[n, vocab]`` in place."""

    def append(self, token_ids: torch.Tensor) -> None:  # noqa: B027
        """Add the tokens drawn, int64 ``[n]``, for processors that depend on the output."""
