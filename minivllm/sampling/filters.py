"""Filters of the distribution that a token is drawn from: temperature, min_p, top_k, top_p.

Each filter takes logits and returns logits, ``-inf`` for what it drops, so they can be looked at
one by one. The order matters: top_p measures what top_k has left over.
(vLLM: TopKTopPSampler in vllm/v1/sample/ops/topk_topp_sampler.py, which also draws)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minivllm.sampling_params import SamplingParams
from minivllm.utils.tensors import make_tensor


def apply_temperature(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Temperature: above 1 flattens, below 1 sharpens. ``[n, vocab]``, ``[n, 1]``, as for all."""
    return logits / temperature


def apply_min_p(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """min_p: drop tokens with less than this share of the best one's probability."""
    best = logits.amax(dim=-1, keepdim=True)
    return logits.masked_fill(logits < best + min_p.log(), -torch.inf)


def apply_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """top_k: drop tokens below the k-th best; ties with it are kept. (int64)"""
    kth_best = logits.topk(int(top_k.max()), dim=-1).values.gather(1, top_k - 1)
    return logits.masked_fill(logits < kth_best, -torch.inf)


def apply_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """top_p (nucleus): drop a token if those better than it already sum to this much probability.

    So the best one always stays. Among equals the one with the smaller id is the better.
    """
    probs = logits.softmax(dim=-1)
    # All tokens below this have less than 1 - top_p together, so none of them is needed: only the
    # others are sorted, which are few where the model is sure of itself.
    enough = (1 - top_p) / logits.shape[-1]
    num_sorted = int((probs >= enough).sum(dim=-1).max())
    best_first = probs.topk(num_sorted, dim=-1).values
    sum_of_better = best_first.cumsum(dim=-1) - best_first
    num_kept = (sum_of_better < top_p).sum(dim=-1, keepdim=True)
    least = best_first.gather(1, num_kept - 1)
    better, equal = probs > least, probs == least
    places_left = num_kept - better.sum(dim=-1, keepdim=True)
    kept = better | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= places_left))
    return logits.masked_fill(~kept, -torch.inf)


class TopKTopPFilter:
    """Temperature, min_p, top_k and top_p of a batch, each for the rows that use it.

    Each row has its parameters, none of them greedy, and ``vocab_size`` logits on the device.
    """

    def __init__(self, params: list[SamplingParams], vocab_size: int, device: torch.device):
        top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        self._steps: list[tuple[Callable, torch.Tensor | None, torch.Tensor]] = []
        for apply, values, off in (
            (apply_temperature, [float(p.temperature) for p in params], 1),
            (apply_min_p, [float(p.min_p) for p in params], 0),
            (apply_top_k, top_k, vocab_size),
            (apply_top_p, [float(p.top_p) for p in params], 1),
        ):
            rows = [i for i, value in enumerate(values) if value != off]
            if not rows:
                continue
            dtype = "int64" if apply is apply_top_k else "float64"
            column = make_tensor([values[i] for i in rows], dtype, device)[:, None]
            index = make_tensor(rows, "int64", device) if len(rows) < len(params) else None
            self._steps.append((apply, index, column))

    def probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities of a batch after temperature and filters.

        Args:
            logits: float ``[n, vocab]``; they are left as they are.

        Returns:
            float64 ``[n, vocab]``; each row sums to 1.
        """
        x = logits.double()
        for apply, rows, values in self._steps:
            if rows is None:
                x = apply(x, values)
            else:
                x = x.index_copy(0, rows, apply(x[rows], values))
        return x.softmax(dim=-1)
