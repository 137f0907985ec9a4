"""Varlen attention: one kernel for whole prompts, chunks after a cached context, and decodes.

Every sequence has some new tokens at its end, and they see everything up to themselves. One program
takes a tile of them, ``BLOCK_M // GROUP`` tokens with all the query heads that share its KV head,
and reads the keys up to the last of these tokens.
(vLLM 0.32: kernel_unified_attention, vllm/v1/attention/ops/triton_unified_attention.py)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minivllm.attention.kernels.launch import launch_varlen
from minivllm.attention.kernels.online_softmax import NO_WINDOW, attend_range, attend_range_torch


def varlen_attention_torch(
    query, key_cache, value_cache, block_table, query_start_loc, seq_lens, scale,
    window=NO_WINDOW, tokens=16, tile=64,
):  # fmt: skip
    """PyTorch reference of ``varlen_attention``: loops over its programs; arguments as there."""
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
                    rows.flatten(0, 1),
                    at.repeat_interleave(rows.shape[1]),
                    key_cache,
                    value_cache=value_cache,
                    table=block_table[seq],
                    kv_head=kv_head,
                    begin=begin,
                    end=end,
                    window=window,
                    scale=scale,
                    tile=tile,
                )
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
    shape = launch_varlen(query, key_cache, max_query_len)
    tokens = shape["BLOCK_M"] // shape["GROUP"]  # in a tile
    num_tiles = len(query) // tokens + len(seq_lens)  # at most: see sequence_of
    _varlen_kernel[(num_tiles, shape["KV_HEADS"])](
        output,
        query,
        key_cache,
        value_cache=value_cache,
        block_table=block_table,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        num_seqs=len(seq_lens),
        table_stride=block_table.stride(0),
        window=window,
        scale=scale,
        **shape,
    )
    return output


@triton.jit(do_not_specialize=["num_seqs", "table_stride"])
def _varlen_kernel(
    output, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, num_seqs,
    table_stride, window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    tokens = BLOCK_M // GROUP
    # The last tiles first: they read the most, so they should not start last.
    tile, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    seq = sequence_of(tile, query_start_loc, num_seqs, tokens)
    start, stop = tl.load(query_start_loc + seq), tl.load(query_start_loc + seq + 1)
    first = start + (tile - first_tile(seq, start, tokens)) * tokens
    if first >= stop:  # one of the few programs without a tile
        return
    seq_len = tl.load(seq_lens + seq)
    before = seq_len - stop  # a token stands at position `before + its row in the batch`

    # Rows: the first token's query heads, then the second's, and so on.
    row, lane = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM_PADDED)
    token = first + row // GROUP
    head = (token * KV_HEADS + kv_head) * GROUP + row % GROUP
    offset = head.to(tl.int64)[:, None] * HEAD_DIM + lane[None, :]
    real = (row < tokens * GROUP) & (token < stop)
    inside = real[:, None] & (lane < HEAD_DIM)[None, :]
    q = tl.load(query + offset, mask=inside, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    out, _ = attend_range(
        q,
        before + token,
        key_cache,
        value_cache=value_cache,
        table=block_table + seq * table_stride,
        kv_head=kv_head,
        # from the first key of the first token's window on, and no key after the last token
        begin=tl.maximum(0, before + first - window + 1),
        end=tl.minimum(seq_len, before + first + tokens),
        window=window,
        scale=scale,
        BLOCK_SIZE=BLOCK_SIZE,
        KV_HEADS=KV_HEADS,
        HEAD_DIM=HEAD_DIM,
        BLOCK_M=BLOCK_M,
        HEAD_DIM_PADDED=HEAD_DIM_PADDED,
        BLOCK_N=BLOCK_N,
        UPCAST=UPCAST,
    )
    tl.store(output + offset, out, mask=inside)


@triton.jit
def first_tile(seq, start, tokens):
    """The first tile of a sequence whose rows begin at ``start``.

    Those before it need ``start // tokens`` tiles if all are full, and for each of them one more
    that is not: so every sequence has enough, and few are left over. (vLLM counts the same way.)
    """
    return start // tokens + seq


@triton.jit
def sequence_of(tile, query_start_loc, num_seqs, tokens):
    """The sequence of a tile, by binary search: the last that begins with this tile or before."""
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if first_tile(middle, tl.load(query_start_loc + middle), tokens) <= tile:
            low = middle
        else:
            high = middle
    return low
