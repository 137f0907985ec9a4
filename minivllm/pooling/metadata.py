"""PoolingMetadata: which rows of a step's hidden states belong to which pooling request.

(vLLM: vllm/v1/pool/metadata.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
