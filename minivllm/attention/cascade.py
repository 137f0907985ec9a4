"""Cascade attention: blocks that many sequences share are read once, for all of them.

All rows of those sequences see all of the shared prefix, so that needs no mask, and is one product
of large matrices: every row's queries times the prefix's keys. The rest of its sequence each row
reads as always. Both are softmaxes over a part of the keys; how much of the whole weight each part
has is in the logarithm of its sum of exponentials (*lse*), so they can be put together exactly.
A layer with a sliding window does without: what its rows see of a prefix differs from row to row.
(Hydragen, Juravsky et al. 2024. vLLM had it, under this name; of that 0.32 has only the switch
``disable_cascade_attn`` left, which changes nothing any more, and ``merge_attn_states``)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from minivllm.attention.metadata import AttentionMetadata, once_per_step

WORTH_SHARING = 4096
"""Rows times shared tokens from which on a prefix is read for all together: what is saved then
outweighs the calls that put two answers together."""

Attended = tuple[torch.Tensor, torch.Tensor]  # [n, num_heads, head_dim]; its lse [n, num_heads]


@dataclass(frozen=True)
class SharedPrefix:
    """Blocks that several sequences begin with, all of them computed before this step."""

    rows: torch.Tensor | slice  # int64 [n]: the sequences' rows in the flat batch
    block_ids: torch.Tensor  # int32 [num_blocks]


@dataclass(frozen=True)
class Cascade:
    """A flat batch, cut into what sequences share and what each has for itself."""

    prefixes: list[SharedPrefix]
    rest: AttentionMetadata  # the same rows, without the shared blocks


@once_per_step
def find_cascade(metadata: AttentionMetadata, block_size: int) -> Cascade | None:
    """The prefixes in a batch that are worth sharing; None if there are none.

    Sequences that begin with the same block are one group, and share as much as all of them do.
    A block that is written in this step is not shared with those who write it.
    """
    # 1. Most often no two sequences begin with the same block.
    starts = metadata.query_start_loc.numpy()
    table = metadata.block_table.numpy()
    if len(set(table[:, 0].tolist())) == len(table):
        return None
    # 2. Who begins with the same block, computed before this step?
    seq_lens = metadata.seq_lens.numpy().copy()
    num_rows = starts[1:] - starts[:-1]
    computed = seq_lens - num_rows  # before this step: all rows see that much
    begun = np.flatnonzero(computed >= block_size)
    first_blocks = table[begun, 0]
    numbers, sizes = np.unique(first_blocks, return_counts=True)
    prefixes = []
    rest_table = table.copy()
    for first_block in numbers[sizes > 1]:
        members = begun[first_blocks == first_block]
        together = num_rows[members].sum() * block_size
        width = computed[members].min() // block_size
        if together * width < WORTH_SHARING:
            continue
        # 3. How many blocks do all of them share?
        head = table[members, :width]
        differs = (head != head[0]).any(axis=0)
        shared = differs.argmax() if differs.any() else width
        if together * shared < WORTH_SHARING:
            continue
        # 4. Their rows read these together; of their tables the rest is left.
        is_member = np.zeros(len(table), dtype=bool)
        is_member[members] = True
        rows = np.flatnonzero(np.repeat(is_member, num_rows))
        in_a_row = rows[-1] - rows[0] == len(rows) - 1  # then they are read where they are
        index = slice(rows[0], rows[-1] + 1) if in_a_row else torch.from_numpy(rows)
        prefixes.append(SharedPrefix(index, torch.from_numpy(head[0, :shared])))
        seq_lens[members] -= shared * block_size
        rest_table[members, : table.shape[1] - shared] = table[members, shared:]
    if not prefixes:
        return None
    longest = int(seq_lens.max())
    rest_table = np.ascontiguousarray(rest_table[:, : -(-longest // block_size)])
    rest = replace(
        metadata,
        seq_lens=torch.from_numpy(seq_lens),
        block_table=torch.from_numpy(rest_table),
        max_seq_len=longest,
    )
    return Cascade(prefixes, rest)


def cascade_attention(
    cascade: Cascade,
    query: torch.Tensor,
    attend_rest: Callable[[AttentionMetadata], Attended],
    attend_to_prefix: Callable[[torch.Tensor, torch.Tensor], Attended],
) -> torch.Tensor:
    """Attention of a flat batch, ``[num_tokens, num_heads, head_dim]`` as its queries are.

    Args:
        attend_rest: attends to what each sequence has for itself.
        attend_to_prefix: attends, for some queries, to all keys of some blocks.
    """
    output, lse = attend_rest(cascade.rest)
    for prefix in cascade.prefixes:
        other, other_lse = attend_to_prefix(query[prefix.rows], prefix.block_ids)
        merge_attn_states(output, lse, prefix.rows, other=other, other_lse=other_lse)
    return output


def merge_attn_states(
    output: torch.Tensor,
    lse: torch.Tensor,
    rows: torch.Tensor | slice,
    other: torch.Tensor,
    other_lse: torch.Tensor,
) -> None:
    """Put attention to two parts of the keys together, in place, for some rows.

    (vLLM: ``merge_attn_states``, vllm/v1/attention/ops/triton_merge_attn_states.py)

    Args:
        output: of one part, ``[num_tokens, num_heads, head_dim]``.
        lse: of that part, float32 ``[num_tokens, num_heads]``.
        rows: which rows, int64 ``[n]`` or a slice.
        other, other_lse: these rows' attention to the other part.
    """
    its_lse = lse[rows]
    # e^a / (e^a + e^b), the other part's share of the weight, is the sigmoid of a - b
    share = torch.sigmoid(other_lse - its_lse).unsqueeze(-1)
    output[rows] = torch.lerp(output[rows].float(), other.float(), share).to(output.dtype)
    lse[rows] = torch.logaddexp(its_lse, other_lse)


def attend_to_all(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> Attended:
    """Attention without a mask: every row sees every key, ``[length, num_kv_heads, head_dim]``.

    So the query heads of a KV head may be rows, too: the products are as large as can be.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    grouped = query.reshape(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1)
    output, lse = flash_attention(
        grouped.reshape(1, num_kv_heads, -1, head_dim),
        key.transpose(0, 1).unsqueeze(0),
        value.transpose(0, 1).unsqueeze(0),
        scale=scale,
    )
    output = output.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1)
    lse = lse.reshape(num_kv_heads, num_rows, -1).transpose(0, 1)
    return output.reshape(query.shape), lse.reshape(num_rows, num_heads)


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    is_causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Attended:
    """torch's flash attention on a CPU, with the lse that its public function leaves out.

    Args:
        query, key, value: ``[batch, heads, length, head_dim]``, fewer heads of the last two.
        scale: multiplies the scores.
        is_causal: row i sees the keys up to i.
        mask: added to the scores.

    Returns:
        ``[batch, heads, length, head_dim]`` and ``[batch, heads, length]``.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
