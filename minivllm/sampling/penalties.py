"""Repetition, frequency and presence penalty: make tokens that occurred before less likely.

Repetition looks at prompt and output, frequency and presence at the output only.
(vLLM: vllm/model_executor/layers/utils.py, apply_penalties)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.sampling.interface import LogitsProcessor, SamplingState
from minivllm.utils.tensors import make_tensor


def count_tokens(lists: list[list[int]], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Count each token in each list: int64 ``[len(lists), vocab]``."""
    longest = max(len(ids) for ids in lists)
    padded = [ids + [vocab_size] * (longest - len(ids)) for ids in lists]
    index = make_tensor(padded, "int64", device)
    counts = torch.zeros(len(lists), vocab_size + 1, dtype=torch.int64, device=device)
    return counts.scatter_add_(1, index, torch.ones_like(index))[:, :vocab_size]


class Penalties(LogitsProcessor):
    """Repetition, frequency and presence penalty, for the rows that set one."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        states = [states[row] for row in rows]
        params = [s.sampling_params for s in states]

        def column(values):
            return make_tensor(values, "float32", device)[:, None]

        self.rows = make_tensor(rows, "int64", device)  # [m]
        self.repetition = column([p.repetition_penalty for p in params])  # [m, 1], as the others
        self.frequency = column([p.frequency_penalty for p in params])
        self.presence = column([p.presence_penalty for p in params])
        prompts = [s.token_ids[: s.num_prompt_tokens] for s in states]
        self.in_prompt = count_tokens(prompts, vocab_size, device) > 0  # bool [m, vocab]
        outputs = [s.output_token_ids for s in states]
        self.counts = count_tokens(outputs, vocab_size, device)  # of the output, int64 [m, vocab]

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        return [i for i, s in enumerate(states) if _uses_any(s.sampling_params)]

    def apply(self, logits: torch.Tensor) -> None:
        x = logits[self.rows]
        in_output = self.counts > 0
        repeated = torch.where(x > 0, x / self.repetition, x * self.repetition)
        x = torch.where(self.in_prompt | in_output, repeated, x)
        logits[self.rows] = x - self.frequency * self.counts - self.presence * in_output

    def append(self, token_ids: torch.Tensor) -> None:
        new = token_ids[self.rows][:, None]
        self.counts.scatter_add_(1, new, torch.ones_like(new))


def _uses_any(params) -> bool:
    return bool(
        params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    )
