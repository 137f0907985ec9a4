"""Rejection sampling: verify draft tokens, by a row of logits for each and one behind the last.

The target draws its own token in every row, as ever, by the number of the sequence's seed and the
row's position, and a draft is accepted if it is that token. The first row with another token is the
last that counts: the rows behind it saw a token that is not there. So every token comes from the
target's distribution by the number that it would have had, and text is the same with and without
drafts, whatever the temperature and the masks.

A draft that was itself drawn (``draft_sample_method="probabilistic"``) is accepted more often than
that, since what it was drawn from is known: with probability p / q, where p is the target's
probability of it and q the draft model's. In place of a rejected one the token is drawn from what
p has more than q. Together that is p again. The draft, the decision on it and the token each have
a number, independent of one another (``Purpose``). (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding"; Chen et al. 2023)

(vLLM: vllm/v1/sample/rejection_sampler.py, which takes the second way for all drafts. For those
that are not drawn, q = 1, it is the same law as the first: a draw is the draft with the draft's
probability, and else it is one of the others.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from minivllm.sampling.interface import DrawnDraft, SamplingState
from minivllm.sampling.random import Purpose, stream_keys, uniform
from minivllm.scheduling.output import TokenLogprobs
from minivllm.utils.tensors import make_tensor


class DrawnDrafts(NamedTuple):
    """Draft tokens of one sequence that were drawn, and the distributions they were drawn from."""

    position: int  # of the first
    token_ids: list[int]
    probs: torch.Tensor  # float32 [number of drafts, vocab]


def states_to_verify(
    state: SamplingState, drafts: list[int], drawn: DrawnDrafts | None
) -> list[SamplingState]:
    """Sampling states of a sequence: before each of its draft tokens, and behind the last.

    Args:
        state: the sequence.
        drafts: those that are verified now.
        drawn: the last ones that were drawn for it; they count if they are these.
    """
    states = []
    position = len(state.token_ids)
    if drawn is not None and (drawn.position, drawn.token_ids[: len(drafts)]) != (position, drafts):
        drawn = None
    for num_known in range(len(drafts) + 1):
        token_ids = state.token_ids + drafts[:num_known]
        row = SamplingState(state.sampling_params, state.seed, token_ids, state.num_prompt_tokens)
        if drawn is not None and num_known < len(drafts):
            row.drawn_draft = DrawnDraft(drafts[num_known], drawn.probs[num_known])
        states.append(row)
    return states


class RejectionSampler:
    """Accepts drawn drafts with probability p / q; a rejected one's row draws from max(p - q, 0).

    Args:
        states: of the rows that verify a drawn draft, by row; each has one.
        device: where the distributions are.
    """

    def __init__(self, states: dict[int, SamplingState], device: torch.device):
        drafts = [s.drawn_draft for s in states.values() if s.drawn_draft is not None]
        self._rows = make_tensor(list(states), "int64", device)
        self._token_ids = make_tensor([[draft.token_id] for draft in drafts], "int64", device)
        self._draft_probs = torch.stack([draft.probs for draft in drafts])
        keys = stream_keys([state.seed for state in states.values()], Purpose.ACCEPTANCE)
        numbers = uniform(keys, [len(state.token_ids) for state in states.values()])
        self._numbers = make_tensor(numbers, "float64", device)

    def probs(self, target_probs: torch.Tensor) -> torch.Tensor:
        """Probabilities by row: an accepted draft's token has all of it; else max(p - q, 0).

        Args:
            target_probs: float64 ``[n, vocab]``.

        Returns:
            float64 ``[n, vocab]``; these rows do not sum to 1.
        """
        p, q = target_probs[self._rows], self._draft_probs.double()
        of_draft = (probs.gather(1, self._token_ids)[:, 0] for probs in (p, q))
        p_draft, q_draft = of_draft
        accepted = (self._numbers * q_draft < p_draft)[:, None]
        left = (p - q).clamp(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, p)  # p and q are as good as equal
        certain = torch.zeros_like(p).scatter_(1, self._token_ids, 1.0)
        return target_probs.index_copy(0, self._rows, torch.where(accepted, certain, left))


def num_tokens_that_count(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """Number of tokens drawn in a sequence's rows that count: accepted drafts, and one more.

    Args:
        sampled: one for each row.
        drafts: one fewer.
    """
    for i, draft in enumerate(drafts):
        if sampled[i] != draft:
            return i + 1
    return len(sampled)


def keep_verified(
    seq_ids: Sequence[str],
    drafts: Mapping[str, list[int]],
    token_ids: Sequence[int],
    logprobs: Mapping[int, TokenLogprobs],
) -> tuple[dict[str, list[int]], dict[str, list[TokenLogprobs]]]:
    """Verify drafts: keep the tokens that count.

    Args:
        seq_ids: the sequences in the order of their rows: one for each draft, and one more.
        drafts: of those that have any.
        token_ids: sampled in each row.
        logprobs: by row, where they were asked for.

    Returns:
        The tokens of each sequence, and their logprobs where they were asked for.
    """
    kept: dict[str, list[int]] = {}
    kept_logprobs: dict[str, list[TokenLogprobs]] = {}
    end = 0
    for seq_id in seq_ids:
        mine = drafts.get(seq_id, [])
        row = end
        end += 1 + len(mine)
        num_kept = num_tokens_that_count(token_ids[row:end], mine)
        kept[seq_id] = list(token_ids[row : row + num_kept])
        if row in logprobs:
            kept_logprobs[seq_id] = [logprobs[i] for i in range(row, row + num_kept)]
    return kept, kept_logprobs
