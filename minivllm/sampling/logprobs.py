"""Logprobs: log probabilities under the raw model, of the chosen token and the most likely.

They are taken before any penalty, mask or temperature. (vLLM: compute_token_logprobs in
vllm/v1/worker/gpu/sample/logprob.py)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minivllm.scheduling.output import TokenLogprobs
from minivllm.utils.tensors import make_tensor

_ROWS_AT_ONCE = 256  # of logits over the whole vocabulary: a long prompt has more than fit


def gather_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: list[int]
) -> list[TokenLogprobs]:
    """Logprob and rank of each row's token, and logprobs of its most likely tokens.

    Args:
        logits: float32 ``[n, vocab]``, as they came from the model.
        token_ids: the token of each row, int64 ``[n]``.
        num_top: how many of the best tokens each row wants beside it; -1 is all.

    Returns:
        One per row: the row's token first, then its best, the best first.
    """
    vocab_size = logits.shape[-1]
    num_top = [vocab_size if k == -1 else k for k in num_top]
    logprobs = logits.log_softmax(dim=-1)
    own_ids = token_ids[:, None]
    own = logprobs.gather(1, own_ids)
    ranks = (logprobs >= own).sum(dim=-1)  # of equals each counts all, as in vLLM
    best, best_ids = logprobs.topk(max(num_top), dim=-1)
    ids = torch.cat([own_ids, best_ids], dim=-1).tolist()
    values = torch.cat([own, best], dim=-1).tolist()
    return [
        TokenLogprobs(row_ids[: 1 + k], row_values[: 1 + k], rank)
        for row_ids, row_values, rank, k in zip(ids, values, ranks.tolist(), num_top, strict=True)
    ]


def prompt_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    token_ids: list[int],
    num_top: int,
) -> list[TokenLogprobs]:
    """Logprobs of the prompt's tokens, and of the most likely tokens at each position.

    Args:
        compute_logits: the model's head.
        hidden: ``[n, hidden_size]``, each row one position before its token.
        token_ids: n of them.
        num_top: how many of the best tokens to report beside each; -1 is all.
    """
    found = []
    for begin in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        ids = make_tensor(token_ids[rows], "int64", hidden.device)
        found += gather_logprobs(compute_logits(hidden[rows]), ids, [num_top] * len(ids))
    return found
