"""SamplingMetadata: the sampling parameters of a batch as tensors and logits processors.

A parameter costs something only in the rows that use it. The tensors are built when the batch
changes; from step to step only the tokens that were drawn are added. (vLLM:
SamplingStates in vllm/v1/worker/gpu/sample/states.py, whose rows are kept on the GPU)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from minivllm.sampling.filters import TopKTopPFilter
from minivllm.sampling.interface import LogitsProcessor, SamplingState
from minivllm.sampling.logits_processors import AllowedTokens, CallableLogitsProcessors, LogitBias
from minivllm.sampling.penalties import Penalties
from minivllm.sampling.random import Purpose, stream_keys, uniform
from minivllm.sampling.rejection_sampler import RejectionSampler
from minivllm.sampling.token_bans import BadWords, MinTokens
from minivllm.utils.tensors import make_tensor

# What changes logits, in this order.
IN_ORDER: tuple[type[LogitsProcessor], ...] = (
    CallableLogitsProcessors, AllowedTokens, BadWords, MinTokens, LogitBias, Penalties,
)  # fmt: skip


class SamplingMetadata:
    """The sampling parameters of a batch, one state per row of its logits, ``[n, vocab_size]``."""

    def __init__(self, states: Sequence[SamplingState], vocab_size: int, device: torch.device):
        self.states = states
        self.processors = [
            kind(rows, states, vocab_size, device)
            for kind in IN_ORDER
            if (rows := kind.rows_of(states))
        ]
        # rows that draw; the others take the best token
        self.random_rows = [i for i, s in enumerate(states) if not s.sampling_params.greedy]
        self.random_index = make_tensor(self.random_rows, "int64", device)
        random = [states[row] for row in self.random_rows]
        self.keys = stream_keys([state.seed for state in random], Purpose.TOKEN)
        self.filters = TopKTopPFilter([s.sampling_params for s in random], vocab_size, device)
        drawn = {i: state for i, state in enumerate(random) if state.drawn_draft is not None}
        self.rejection_sampler = RejectionSampler(drawn, device) if drawn else None
        self.logprobs_rows = [
            i for i, s in enumerate(states) if s.sampling_params.logprobs is not None
        ]

    def numbers(self) -> np.ndarray:
        """Return the uniform number that draws each random row's next token, by its position."""
        return uniform(self.keys, [len(self.states[row].token_ids) for row in self.random_rows])

    def count(self, token_ids: torch.Tensor) -> None:
        """Count each row's new token, int64 ``[n]``, where its penalties and bans depend on it."""
        for processor in self.processors:
            processor.append(token_ids)
