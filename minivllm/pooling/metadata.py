"""PoolingMetadata: which rows of a step's hidden states belong to which pooling request.

(vLLM: vllm/v1/pool/metadata.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch

from minivllm.pooling_params import PoolingParams


@dataclass
class PoolingStates:
    """State of one sequence between the chunks of its prompt."""

    hidden_states_cache: list[torch.Tensor] = field(default_factory=list)  # [rows, hidden_size]


@dataclass
class PoolingMetadata:
    """Layout of a pooling step; all lists are in batch order, one entry per sequence."""

    pooling_params: list[PoolingParams]
    prompt_token_ids: list[list[int]]
    query_lens: list[int]  # rows of this step
    num_computed_tokens: list[int]  # rows of the steps before
    states: list[PoolingStates]

    @property
    def query_ends(self) -> list[int]:
        """Ends of the sequences' rows in the flat batch, exclusive."""
        return list(accumulate(self.query_lens))

    @property
    def done(self) -> list[bool]:
        """True for each prompt that is complete with this step."""
        known = zip(self.num_computed_tokens, self.query_lens, self.prompt_token_ids, strict=True)
        return [start + new >= len(ids) for start, new, ids in known]

    def of(self, indices: list[int]) -> PoolingMetadata:
        """The same of some sequences; only their rows of hidden states belong to it."""
        return PoolingMetadata(
            pooling_params=[self.pooling_params[i] for i in indices],
            prompt_token_ids=[self.prompt_token_ids[i] for i in indices],
            query_lens=[self.query_lens[i] for i in indices],
            num_computed_tokens=[self.num_computed_tokens[i] for i in indices],
            states=[self.states[i] for i in indices],
        )
