"""Sampler: one row of logits per sequence in, one token per sequence out.

The order is the one that users of vLLM know: (greedy: argmax) -> temperature -> top_k -> top_p ->
draw. A draw inverts the cumulative distribution at one number from the sequence's own generator, so
what a seeded request gets does not depend on what shares its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from minivllm.sampling.logprobs import gather_logprobs
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.output import TokenLogprobs


def filtered_probs(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """The distributions that tokens are drawn from: float64 ``[n, vocab]``, each row sums to 1.

    Args:
        logits: float32 ``[n, vocab]``.
        params: one per row, none of them greedy.
    """

    def column(values, dtype):
        return torch.tensor(values, dtype=dtype, device=logits.device)[:, None]

    vocab_size = logits.shape[-1]
    logits = logits.double() / column([p.temperature for p in params], torch.float64)

    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    top_p = [p.top_p for p in params]
    if min(top_k) == vocab_size and min(top_p) == 1:
        return logits.softmax(dim=-1)

    best_first = logits.sort(dim=-1, descending=True).values
    # top_k: nothing below the k-th best logit; ties with it are kept.
    kth_best = best_first.gather(1, column(top_k, torch.int64) - 1)
    logits = logits.masked_fill(logits < kth_best, -torch.inf)
    probs = logits.softmax(dim=-1)

    # top_p: a token stays if those better than it have not reached p yet; so the best one always
    # stays. Among equals the one with the smaller id is the better.
    best_first, order = probs.sort(dim=-1, descending=True, stable=True)
    sum_of_better = best_first.cumsum(dim=-1) - best_first
    dropped = sum_of_better >= column(top_p, torch.float64)
    probs = probs.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), 0)
    return probs / probs.sum(dim=-1, keepdim=True)


def draw(probs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The tokens in whose interval of the cumulative distribution the numbers fall.

    Args:
        probs: float64 ``[n, vocab]``, rows sum to 1.
        numbers: float64 ``[n]``, in [0, 1).

    Returns:
        int64 ``[n]``.
    """
    edges = probs.cumsum(dim=-1)
    # Scaled by the last edge: rounding may leave it a hair under 1, and no number may fall beyond.
    return torch.searchsorted(edges, numbers[:, None] * edges[:, -1:], right=True)[:, 0]


@dataclass(frozen=True)
class SamplerOutput:
    """One token per row, and logprobs by row for those that asked."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs]


class Sampler:
    """Chooses the next tokens of a batch."""

    def __call__(
        self, logits: torch.Tensor, params: list[SamplingParams], generators: list[Random]
    ) -> SamplerOutput:
        """One token per row.

        Args:
            logits: float32 ``[n, vocab]``.
            params: one per row.
            generators: one per row; each row that is not greedy takes one number from its own.
        """
        tokens = logits.argmax(dim=-1)
        rows = [i for i, p in enumerate(params) if not p.greedy]
        if rows:
            numbers = torch.tensor(
                [generators[i].random() for i in rows], dtype=torch.float64, device=logits.device
            )
            probs = filtered_probs(logits[rows], [params[i] for i in rows])
            tokens[rows] = draw(probs, numbers)
        token_ids = tokens.tolist()
        return SamplerOutput(token_ids, self._logprobs(logits, token_ids, params))

    @staticmethod
    def _logprobs(
        logits: torch.Tensor, token_ids: list[int], params: list[SamplingParams]
    ) -> dict[int, TokenLogprobs]:
        rows = [i for i, p in enumerate(params) if p.logprobs is not None]
        if not rows:
            return {}
        wanted = [params[i].logprobs for i in rows]
        gathered = gather_logprobs(logits[rows], [token_ids[i] for i in rows], wanted)
        return dict(zip(rows, gathered, strict=True))
