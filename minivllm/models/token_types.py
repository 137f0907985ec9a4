"""Token types: which of a pair's two texts a token belongs to, kept in its id.

A model gets ids and positions. BERT wants a type of each token besides, 0 or 1; an id needs far
fewer bits than it has, and the type is put into those above. (vLLM:
vllm/model_executor/models/bert.py)
"""

from __future__ import annotations

import torch

SHIFT = 30  # vocabularies have less than 2 ** 30 tokens


def encode_token_type_ids(token_ids: list[int], first_of_type_1: int) -> list[int]:
    """Ids whose tokens from this index on have type 1; the others have type 0."""
    return [*token_ids[:first_of_type_1], *(i | 1 << SHIFT for i in token_ids[first_of_type_1:])]


def decode_token_type_ids(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take ids and types apart again, both int64 ``[num_tokens]``."""
    return token_ids & ((1 << SHIFT) - 1), token_ids >> SHIFT
