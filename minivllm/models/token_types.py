"""Token types: which of a pair's two texts a token belongs to, kept in its id.

A model gets ids and positions. BERT wants a type of each token besides, 0 or 1; an id needs far
fewer bits than it has, and the type is put into those above. (vLLM:
vllm/model_executor/models/bert.py)
"""

from __future__ import annotations

import torch

SHIFT = 30  # vocabularies have less than 2 ** 30 tokens


def encode_token_type_1(token_ids: torch.Tensor) -> None:
    """Give these ids, int64 ``[num_tokens]``, type 1 in place; ids without it have type 0."""
    token_ids |= 1 << SHIFT


def decode_token_type_ids(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take ids and types apart again, both int64 ``[num_tokens]``."""
    return token_ids & ((1 << SHIFT) - 1), token_ids >> SHIFT
