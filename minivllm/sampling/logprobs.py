"""Log-probabilities under the raw model: of the token that was taken, and of the best ones.

They are taken before any penalty, mask or temperature, so they say what the model thinks and not
how it was asked. (vLLM: vllm/v1/sample/sampler.py, gather_logprobs)
"""

from __future__ import annotations

import torch

from minivllm.scheduling.output import TokenLogprobs


def gather_logprobs(
    logits: torch.Tensor, token_ids: list[int], num_top: list[int]
) -> list[TokenLogprobs]:
    """For every row the logprob and rank of its token, and those of its best tokens.

    Args:
        logits: float32 ``[n, vocab]``, as they came from the model.
        token_ids: the token of each row.
        num_top: how many of the best tokens each row wants beside it; -1 is all.

    Returns:
        One per row: the row's token first, then its best, the best first.
    """
    vocab_size = logits.shape[-1]
    num_top = [vocab_size if k == -1 else k for k in num_top]
    logprobs = logits.log_softmax(dim=-1)
    own_ids = torch.tensor(token_ids, device=logits.device)[:, None]
    own = logprobs.gather(1, own_ids)
    ranks = 1 + (logprobs > own).sum(dim=-1)
    best, best_ids = logprobs.topk(max(num_top), dim=-1)
    ids = torch.cat([own_ids, best_ids], dim=-1).tolist()
    values = torch.cat([own, best], dim=-1).tolist()
    return [
        TokenLogprobs(row_ids[: 1 + k], row_values[: 1 + k], rank)
        for row_ids, row_values, rank, k in zip(ids, values, ranks.tolist(), num_top, strict=True)
    ]
