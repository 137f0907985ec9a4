"""Paged decode: one new token per sequence, its query heads in groups that share a KV head.

One program per sequence and KV head. Its rows are the query heads of the group, so that each K and
each V is read once for all of them: a decode is limited by memory, and so reads less of it.
(vLLM 0.6.6's CUDA kernels: paged_attention_v1, csrc/attention/attention_kernels.cuh, one thread
block per *query* head)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minivllm.attention.kernels.launch import launch_decode
from minivllm.attention.kernels.online_softmax import NO_WINDOW, attend_range, attend_range_torch


def paged_decode_torch(
    query, key_cache, value_cache, block_table, seq_lens, scale, window=NO_WINDOW, tile=64
):
    """PyTorch reference of ``paged_decode``: loops over its programs; arguments as there."""
    num_kv_heads = key_cache.shape[2]
    grouped = query.unflatten(1, (num_kv_heads, -1))
    output = torch.empty_like(grouped)
    for seq, seq_len in enumerate(seq_lens.tolist()):
        for kv_head in range(num_kv_heads):
            rows = grouped[seq, kv_head]
            row_at = torch.full((len(rows),), seq_len - 1)
            begin = max(0, seq_len - window)
            output[seq, kv_head], _ = attend_range_torch(
                rows,
                row_at,
                key_cache,
                value_cache=value_cache,
                table=block_table[seq],
                kv_head=kv_head,
                begin=begin,
                end=seq_len,
                window=window,
                scale=scale,
                tile=tile,
            )
    return output.flatten(1, 2)


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = NO_WINDOW,
) -> torch.Tensor:
    """Attention of each sequence's last token over all of its tokens.

    Args:
        query: ``[num_seqs, num_heads, head_dim]``.
        key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
        block_table: int32 ``[num_seqs, max_blocks]``.
        seq_lens: int32 ``[num_seqs]``, the new token included.
        scale: multiplies the scores.
        window: how many tokens a token sees, itself included.

    Returns:
        ``[num_seqs, num_heads, head_dim]``.
    """
    query = query.contiguous()
    output = torch.empty_like(query)
    shape = launch_decode(query, key_cache)
    _paged_decode_kernel[(len(query), shape["KV_HEADS"])](
        output,
        query,
        key_cache,
        value_cache=value_cache,
        block_table=block_table,
        seq_lens=seq_lens,
        table_stride=block_table.stride(0),
        window=window,
        scale=scale,
        **shape,
    )
    return output


@triton.jit(do_not_specialize=["table_stride"])
def _paged_decode_kernel(
    output, query, key_cache, value_cache, block_table, seq_lens, table_stride, window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    q, offset, inside = load_group(
        query,
        seq,
        kv_head,
        KV_HEADS=KV_HEADS,
        HEAD_DIM=HEAD_DIM,
        GROUP=GROUP,
        BLOCK_M=BLOCK_M,
        HEAD_DIM_PADDED=HEAD_DIM_PADDED,
    )
    if UPCAST:
        q = q.to(tl.float32)
    row_at = tl.full([BLOCK_M], 0, tl.int32) + seq_len - 1  # the new token is the last
    out, _ = attend_range(
        q,
        row_at,
        key_cache,
        value_cache=value_cache,
        table=block_table + seq * table_stride,
        kv_head=kv_head,
        begin=tl.maximum(0, seq_len - window),
        end=seq_len,
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
def load_group(
    query, token, kv_head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
):  # fmt: skip
    """The query heads of one token that share a KV head, one per row.

    Returns:
        ``[BLOCK_M, HEAD_DIM_PADDED]`` with 0 beyond the group and the head, the offsets of these
        numbers, and which of them there are.
    """
    row, lane = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM_PADDED)
    head = (token * KV_HEADS + kv_head) * GROUP + row
    offset = head[:, None] * HEAD_DIM + lane[None, :]
    inside = (row < GROUP)[:, None] & (lane < HEAD_DIM)[None, :]
    return tl.load(query + offset, mask=inside, other=0.0), offset, inside
