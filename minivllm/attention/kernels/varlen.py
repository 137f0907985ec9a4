"""One kernel for any batch: whole prompts, chunks that attend to cached context, and decodes.

There is no prefill and no decode here either: every sequence has some new tokens at its end, and
they see everything up to themselves. One program takes a few of them, ``ROWS // GROUP`` tokens with
all the query heads that share its KV head, and reads the keys up to the last of these tokens.
(vLLM 0.32: kernel_unified_attention, vllm/v1/attention/ops/triton_unified_attention.py)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minivllm.attention.kernels.online_softmax import (
    NO_WINDOW,
    attend_range,
    attend_range_torch,
    launch_shape,
)


def varlen_attention_torch(
    query, key_cache, value_cache, block_table, query_start_loc, seq_lens, scale,
    window=NO_WINDOW, tokens=16, tile=64,
):  # fmt: skip
    """The twin of ``varlen_attention``."""
    num_kv_heads = key_cache.shape[2]
    grouped = query.unflatten(1, (num_kv_heads, -1))
    output = torch.empty_like(grouped)
    starts = query_start_loc.tolist()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        for first in range(starts[seq], starts[seq + 1], tokens):
            token = torch.arange(first, min(first + tokens, starts[seq + 1]))
            at = seq_len - starts[seq + 1] + token
            begin, end = max(0, int(at[0]) - window + 1), int(at[-1]) + 1
            for kv_head in range(num_kv_heads):
                rows = grouped[token, kv_head]  # [tokens, group, head_dim]
                out, _ = attend_range_torch(
                    rows.flatten(0, 1), at.repeat_interleave(rows.shape[1]), key_cache,
                    value_cache, block_table[seq], kv_head, begin, end, window, scale, tile,
                )  # fmt: skip
                output[token, kv_head] = out.view_as(rows).to(query.dtype)
    return output.flatten(1, 2)


def varlen_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    scale: float,
    window: int = NO_WINDOW,
) -> torch.Tensor:
    """Causal attention of a flat batch.

    Args:
        query: ``[num_tokens, num_heads, head_dim]``.
        key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
        block_table: int32 ``[num_seqs, max_blocks]``.
        query_start_loc: int32 ``[num_seqs + 1]``, where each sequence's rows begin.
        seq_lens: int32 ``[num_seqs]``, the new tokens included.
        max_query_len: the most rows that one sequence has.
        scale: multiplies the scores.
        window: how many tokens a token sees, itself included.

    Returns:
        ``[num_tokens, num_heads, head_dim]``.
    """
    query = query.contiguous()
    output = torch.empty_like(query)
    group = query.shape[1] // key_cache.shape[2]
    row_bytes = query.shape[2] * query.element_size()
    most = 128 if row_bytes <= 256 else 64 if row_bytes <= 512 else 32  # what registers hold
    shape = launch_shape(query, key_cache, rows=max(group, min(most, max_query_len * group)))
    tiles = triton.cdiv(max_query_len, shape["ROWS"] // group)
    _varlen_kernel[(tiles, shape["KV_HEADS"], len(seq_lens))](
        output, query, key_cache, value_cache, block_table, query_start_loc, seq_lens,
        block_table.stride(0), window, scale, **shape,
        num_warps=8 if shape["ROWS"] == 128 else 4, num_stages=2,
    )  # fmt: skip
    return output


@triton.jit
def _varlen_kernel(
    output, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, table_stride,
    window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    tile, kv_head, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = ROWS // GROUP
    stop = tl.load(query_start_loc + seq + 1)
    first = tl.load(query_start_loc + seq) + tile * tokens
    if first >= stop:  # the grid is made for the longest; this sequence has no such tile
        return
    seq_len = tl.load(seq_lens + seq)
    before = seq_len - stop  # a token stands at position `before + its row in the batch`

    # Rows: the first token's query heads, then the second's, and so on.
    row, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
    token = first + row // GROUP
    head = (token * KV_HEADS + kv_head) * GROUP + row % GROUP
    offset = head.to(tl.int64)[:, None] * HEAD_DIM + lane[None, :]
    real = (row < tokens * GROUP) & (token < stop)
    inside = real[:, None] & (lane < HEAD_DIM)[None, :]
    q = tl.load(query + offset, mask=inside, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    out, _ = attend_range(
        q, before + token, key_cache, value_cache, block_table + seq * table_stride, kv_head,
        tl.maximum(0, before + first - window + 1),  # what the first token's window begins with
        tl.minimum(seq_len, before + first + tokens),  # and no key after the last token
        window, scale, BLOCK_SIZE, KV_HEADS, HEAD_DIM, ROWS, LANES, TILE, UPCAST,
    )  # fmt: skip
    tl.store(output + offset, out, mask=inside)
