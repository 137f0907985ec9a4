"""Verification: which drafts were right? A row of logits for each, and one more behind the last.

The target draws its own token in every row, as ever, with the sequence's own next number, and a
draft is accepted if it is that token. The first row that says something else is the last one that
counts: the rows behind it saw a token that is not there. So every token comes from the target's
distribution by the number that it would have had, and text is the same with and without drafts,
whatever the temperature and the masks.

(vLLM: vllm/v1/sample/rejection_sampler.py, which accepts a draft with its probability and draws the
token in place of a rejected one from what is left. For drafts that are not drawn themselves this is
the same law: a draw is the draft with the draft's probability, and else it is one of the others.)
"""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.sampling.interface import SamplingState


def states_to_verify(state: SamplingState, drafts: list[int]) -> list[SamplingState]:
    """A sequence as it would be before each of its drafts and behind the last one.

    They draw from the sequence's own generator, so rows must be drawn in order.
    """
    states = []
    for num_known in range(len(drafts) + 1):
        token_ids = state.token_ids + drafts[:num_known]
        row = SamplingState(
            state.sampling_params, state.generator, token_ids, state.num_prompt_tokens
        )
        row.returned_numbers = state.returned_numbers
        states.append(row)
    return states


def num_tokens_that_count(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """Of the tokens drawn in a sequence's rows: the accepted ones, and one more.

    Args:
        sampled: one for each row.
        drafts: one fewer.
    """
    for i, draft in enumerate(drafts):
        if sampled[i] != draft:
            return i + 1
    return len(sampled)
