"""SamplingMetadata: what a batch's sampling parameters come to, as tensors.

A parameter costs something only in the rows that use it. The tensors are built when the batch
changes; from step to step only the tokens that were drawn are added. (vLLM:
SamplingStates in vllm/v1/worker/gpu/sample/states.py, whose rows are kept on the GPU)
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from minivllm.sampling.filters import Filters
from minivllm.sampling.logits_processors import AllowedTokens, LogitBias, UserProcessors
from minivllm.sampling.penalties import Penalties
from minivllm.sampling.stopping import BadWords, MinTokens
from minivllm.sampling_params import SamplingParams
from minivllm.tensors import make_tensor

# What changes logits, in this order. Each has three methods: ``of`` looks at the batch and returns
# None if no row asks for it; ``apply`` changes logits in place; ``append`` follows what was drawn.
IN_ORDER = (UserProcessors, AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)


@dataclass(eq=False)
class SamplingState:
    """What the sampler must know of one sequence."""

    sampling_params: SamplingParams
    generator: Random  # of this sequence alone
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class SamplingMetadata:
    """The sampling parameters of a batch, one state per row of its logits.

    Args:
        states: one per row.
        vocab_size: columns of the logits.
        device: where the logits are.
    """

    def __init__(self, states: list[SamplingState], vocab_size: int, device: torch.device):
        self.states = states
        made = (kind.of(states, vocab_size, device) for kind in IN_ORDER)
        self.processors = [processor for processor in made if processor is not None]
        # rows that draw; the others take the best token
        self.random_rows = [i for i, s in enumerate(states) if not s.sampling_params.greedy]
        self.random_index = make_tensor(self.random_rows, "int64", device)
        random = [states[row].sampling_params for row in self.random_rows]
        self.filters = Filters(random, vocab_size, device)
        self.logprobs_rows = [
            i for i, s in enumerate(states) if s.sampling_params.logprobs is not None
        ]

    def append(self, token_ids: torch.Tensor) -> list[int]:
        """Let every row have one more token, int64 ``[n]``; returns them as a list."""
        for processor in self.processors:
            processor.append(token_ids)
        as_list = token_ids.tolist()
        for state, token_id in zip(self.states, as_list, strict=True):
            state.token_ids.append(token_id)
        return as_list
