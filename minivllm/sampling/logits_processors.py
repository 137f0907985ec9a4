"""Logits processors: a request's own functions, allowed_token_ids, logit_bias.

(vLLM 0.6.6: vllm/entrypoints/openai/logits_processors.py, and SamplingParams.logits_processors)
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from minivllm.logger import init_logger
from minivllm.sampling.interface import LogitsProcessor, SamplingState
from minivllm.utils.tensors import make_tensor

logger = init_logger(__name__)


class CallableLogitsProcessors(LogitsProcessor):
    """``logits_processors`` of the sampling parameters: a request's functions, on its row."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        self.rows = [(row, states[row]) for row in rows]

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        return [i for i, s in enumerate(states) if s.sampling_params.logits_processors]

    def apply(self, logits: torch.Tensor) -> None:
        for row, state in self.rows:
            prompt = state.token_ids[: state.num_prompt_tokens]
            for function in state.sampling_params.logits_processors or ():
                try:
                    if len(inspect.signature(function).parameters) == 3:
                        changed = function(prompt, state.output_token_ids, logits[row].clone())
                    else:
                        changed = function(state.output_token_ids, logits[row].clone())
                    logits[row] = changed
                except Exception:  # the request's own fault: it ends, and the others go on
                    logger.exception("A function in logits_processors failed; its request ends.")
                    logits[row] = torch.nan
                    break


class AllowedTokens(LogitsProcessor):
    """Sets every logit outside ``allowed_token_ids`` to -inf."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        self.rows = make_tensor(rows, "int64", device)  # [m]
        self.forbidden = torch.ones(len(rows), vocab_size, dtype=torch.bool, device=device)
        for i, row in enumerate(rows):
            self.forbidden[i, states[row].sampling_params.allowed_token_ids] = False

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        return [i for i, s in enumerate(states) if s.sampling_params.allowed_token_ids is not None]

    def apply(self, logits: torch.Tensor) -> None:
        logits[self.rows] = logits[self.rows].masked_fill(self.forbidden, -torch.inf)


class LogitBias(LogitsProcessor):
    """Adds ``logit_bias`` to the logits of the tokens it names."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        biases = [(row, states[row].sampling_params.logit_bias or {}) for row in rows]
        pairs = [(row, *item) for row, bias in biases for item in bias.items()]
        columns = zip(zip(*pairs, strict=True), ("int64", "int64", "float32"), strict=True)
        self.rows, self.ids, self.values = (  # [pairs]
            make_tensor(column, dtype, device) for column, dtype in columns
        )

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        return [i for i, s in enumerate(states) if s.sampling_params.logit_bias]

    def apply(self, logits: torch.Tensor) -> None:
        logits.index_put_((self.rows, self.ids), self.values, accumulate=True)
