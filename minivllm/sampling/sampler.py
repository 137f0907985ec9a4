"""Sampler: one row of logits per sequence in, one token per sequence out (notebook 12).

The order is the one that users of vLLM know: functions of the user's, allowed tokens, bad words,
min_tokens, logit_bias, penalties -> (greedy: argmax) -> temperature, min_p, top_k, top_p -> draw.
A draw inverts the cumulative distribution at one number, a hash of the sequence's seed and the
token's position, so what a seeded request gets does not depend on what shares its batch.
(vLLM: vllm/v1/worker/gpu/sample/sampler.py, which biases and masks before the penalties, and whose
hash of seed and position gives Gumbel noise: a token is the argmax of logits plus noise)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch

from minivllm.sampling.logprobs import gather_logprobs
from minivllm.sampling.metadata import SamplingMetadata
from minivllm.scheduling.output import TokenLogprobs
from minivllm.utils.tensors import best_tokens, make_tensor


def sample_from_cdf(probs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF sampling: per row, the token whose CDF interval holds the uniform number.

    Args:
        probs: float64 ``[n, vocab]``, rows sum to 1.
        numbers: float64 ``[n]``, in [0, 1); see ``uniform``.

    Returns:
        int64 ``[n]``.
    """
    edges = probs.cumsum(dim=-1)
    # Scaled by the last edge: rounding may leave it a hair under 1, and no number may fall beyond.
    return torch.searchsorted(edges, numbers[:, None] * edges[:, -1:], right=True)[:, 0]


@dataclass(frozen=True)
class SamplerOutput:
    """The chosen token of each row, with logprobs where asked."""

    token_ids: torch.Tensor  # int64 [n]
    logprobs: dict[int, TokenLogprobs]  # by row, for those that asked
    # rows whose best logit is no finite number (all tokens forbidden, NaN, a user's function that
    # failed): what is in token_ids means nothing there
    invalid_rows: list[int]


class Sampler:
    """Chooses the next token of every row of a batch.

    1. Apply the logits processors, in the order of ``metadata.IN_ORDER``.
    2. Take the best token of every row: greedy rows are done.
    3. For the other rows apply temperature, min_p, top_k and top_p.
       (A row that verifies a drawn draft gets another distribution; see ``RejectionSampler``.)
    4. Draw their tokens, each by one number: a hash of its sequence's seed and its position.
    5. Gather logprobs, from the logits as they came from the model.
    """

    def __call__(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """One token per row.

        Args:
            logits: float32 ``[n, vocab]``; they are left as they are.
            metadata: of the same rows.
        """
        raw = logits
        if metadata.processors:
            logits = logits.clone()
            for processor in metadata.processors:
                processor.apply(logits)
        best, token_ids = best_tokens(logits)
        invalid = [row for row, logit in enumerate(best.tolist()) if not isfinite(logit)]
        if invalid:  # anything will do there, if only the rest of the batch is as without them
            logits = logits.clone()
            logits[invalid] = 0.0
            token_ids[invalid] = 0
        if rows := metadata.random_rows:
            mine = logits if len(rows) == len(logits) else logits[metadata.random_index]
            probs = metadata.filters.probs(mine)
            if metadata.rejection_sampler is not None:
                probs = metadata.rejection_sampler.probs(probs)
            numbers = make_tensor(metadata.numbers(), "float64", logits.device)
            token_ids[metadata.random_index] = sample_from_cdf(probs, numbers)
        logprobs = {}
        if rows := metadata.logprobs_rows:
            wanted = [metadata.states[row].sampling_params.logprobs or 0 for row in rows]
            logprobs = dict(
                zip(rows, gather_logprobs(raw[rows], token_ids[rows], wanted), strict=True)
            )
        return SamplerOutput(token_ids, logprobs, invalid)
