"""LogitsProcessor: the interface of whatever changes logits, and what it may know of a sequence.

(vLLM: vllm/v1/sample/logits_processor/interface.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from minivllm.sampling_params import SamplingParams


@dataclass(eq=False)
class SamplingState:
    """What the sampler must know of one sequence."""

    sampling_params: SamplingParams
    generator: Random  # of this sequence alone
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class LogitsProcessor(ABC):
    """Changes the logits of the rows of a batch that ask for it; made anew for each batch."""

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
        """Follow what was drawn, int64 ``[n]``. Most need not: they depend on no output."""
