"""Pooling methods: which rows of a prompt's hidden states are kept (notebook 24).

LAST, CLS and MEAN make one row of a prompt; ALL and STEP keep a row per token. (vLLM: seqwise/ and
tokwise/ of vllm/model_executor/layers/pooler/)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minivllm.pooling.metadata import PoolingMetadata

Rows = list[torch.Tensor | None]  # one entry per sequence; None: its prompt is not complete


def last(hidden: torch.Tensor, metadata: PoolingMetadata) -> Rows:
    """The last row of each prompt, ``[hidden_size]``: in a decoder it alone has seen all of it."""
    ends = metadata.query_ends
    return [
        hidden[end - 1] if done else None for end, done in zip(ends, metadata.done, strict=True)
    ]


def cls(hidden: torch.Tensor, metadata: PoolingMetadata) -> Rows:
    """The first row of each prompt, ``[hidden_size]``: an encoder's [CLS] token sees all of it."""
    return [chunk[0] for chunk in _whole(hidden, metadata, "CLS")]


def mean(hidden: torch.Tensor, metadata: PoolingMetadata) -> Rows:
    """The mean of each prompt's rows in float32, ``[hidden_size]``."""
    return [chunk.float().mean(0) for chunk in _whole(hidden, metadata, "MEAN")]


def all_rows(hidden: torch.Tensor, metadata: PoolingMetadata) -> Rows:
    """All rows of each prompt, ``[num_prompt_tokens, hidden_size]``; chunks are kept until then."""
    rows: Rows = []
    chunks = hidden[: sum(metadata.query_lens)].split(metadata.query_lens)
    for chunk, done, state in zip(chunks, metadata.done, metadata.states, strict=True):
        state.hidden_states_cache.append(chunk)
        rows.append(torch.cat(state.hidden_states_cache) if done else None)
        if done:
            state.hidden_states_cache = []
    return rows


def _whole(
    hidden: torch.Tensor, metadata: PoolingMetadata, method: str
) -> tuple[torch.Tensor, ...]:
    """Rows of each prompt, none of which may be in chunks."""
    if any(metadata.num_computed_tokens) or not all(metadata.done):
        raise ValueError(f"pooling type {method} needs each prompt whole, in one step.")
    return hidden[: sum(metadata.query_lens)].split(metadata.query_lens)


METHODS: dict[str, Callable[[torch.Tensor, PoolingMetadata], Rows]] = {
    "LAST": last,
    "CLS": cls,
    "MEAN": mean,
    "ALL": all_rows,
    "STEP": all_rows,  # which of them are kept is known behind the head
}
