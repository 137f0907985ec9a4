"""prompt_logprobs_of: log probabilities of prompts, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minivllm.sampling.logprobs import prompt_logprobs
from minivllm.scheduling.output import SchedulerOutput, TokenLogprobs
from minivllm.worker.input_batch import InputBatch


def prompt_logprobs_of(
    plan: SchedulerOutput,
    input_batch: InputBatch,
    hidden: torch.Tensor,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, dict[int, TokenLogprobs]]:
    """Prompt logprobs of a step's positions, by sequence and position.

    Args:
        plan: the step.
        input_batch: knows who asked for them.
        hidden: the step's hidden states, ``[num_tokens, hidden_size]``.
        compute_logits: the model's head.
    """
    found = {}
    end = 0
    for seq_id, num_new in plan.num_scheduled_tokens.items():
        row = end
        end += num_new
        state = input_batch.states[seq_id]
        num_top = input_batch.num_prompt_logprobs.get(seq_id)
        if num_top is None or len(state.token_ids) > state.num_prompt_tokens:
            continue  # not asked for, or known: the request comes back from a preemption
        # the row of position p says how likely the token at p + 1 was
        start = plan.num_computed_tokens[seq_id] + 1
        token_ids = state.token_ids[start : start + num_new]
        rows = hidden[row : row + len(token_ids)]
        logprobs = prompt_logprobs(compute_logits, rows, token_ids, num_top)
        found[seq_id] = dict(enumerate(logprobs, start=start))
    return found
