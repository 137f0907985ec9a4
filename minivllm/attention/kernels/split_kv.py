"""Split-KV decode: several programs share one long sequence, and a second kernel merges them.

``paged_decode`` has a program per sequence and KV head. One chat with 32,768 tokens and 8 KV heads
is then 8 programs on a GPU with room for hundreds. Here each sequence is cut into ranges, each with
a program of its own, which leaves its result and the log of its sum of exps (lse). The whole is the
mean of the parts' results, weighted with ``exp(lse)``: each part's share of the whole sum.
(FlashDecoding, Dao et al. 2023; vLLM 0.6.6's CUDA kernels: paged_attention_v2 and
paged_attention_v2_reduce_kernel, csrc/attention/attention_kernels.cuh)
(notebook 11)
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl

from minivllm.attention.kernels.decode import load_group
from minivllm.attention.kernels.launch import launch_decode
from minivllm.attention.kernels.online_softmax import NO_WINDOW, attend_range, attend_range_torch

SHORTEST_SPLIT = 256  # positions; below this, merging costs more than it brings
MOST_SPLITS = 128
AT_ONCE = 4  # programs that a processor runs side by side: some load while others compute


@cache
def choose_num_splits(num_programs: int, max_seq_len: int, num_processors: int) -> int:
    """Number of ranges to cut sequences into: the fewest that keep processors busy.

    Programs come in *waves* of as many as run at once. In the last wave some places stay empty;
    more and shorter programs leave fewer of them. (FlashAttention: num_splits_heuristic)

    Args:
        num_programs: sequences times KV heads: the programs without splitting.
        max_seq_len: tokens of the longest sequence.
        num_processors: streaming multiprocessors of the GPU; 1 under the interpreter.
    """
    places = AT_ONCE * num_processors
    if num_programs >= 0.8 * places:
        return 1

    def busy(num_splits: int) -> float:
        waves = num_programs * num_splits / places
        return waves / math.ceil(waves)

    most = min(max_seq_len // SHORTEST_SPLIT, MOST_SPLITS)
    choices = {n: busy(n) for n in range(1, most + 1)} or {1: busy(1)}
    return next(n for n in choices if choices[n] >= 0.9 * max(choices.values()))


def split_ranges(begin: int, seq_len: int, num_splits: int) -> list[tuple[int, int]]:
    """The ranges of positions that the programs of one sequence take; some may be empty."""
    length = -(-(seq_len - begin) // num_splits)
    starts = [min(seq_len, begin + split * length) for split in range(num_splits)]
    return [(start, min(seq_len, start + length)) for start in starts]


def split_decode_torch(
    query, key_cache, value_cache, block_table, seq_lens, scale, num_splits, window=NO_WINDOW,
    tile=64,
):  # fmt: skip
    """PyTorch reference of ``split_decode``: loops over its programs; arguments as there."""
    num_kv_heads = key_cache.shape[2]
    grouped = query.unflatten(1, (num_kv_heads, -1))
    parts = torch.empty(*grouped.shape[:3], num_splits, grouped.shape[3])
    lse = torch.empty(parts.shape[:4])
    for seq, seq_len in enumerate(seq_lens.tolist()):
        ranges = split_ranges(max(0, seq_len - window), seq_len, num_splits)
        for kv_head in range(num_kv_heads):
            rows = grouped[seq, kv_head]
            row_at = torch.full((len(rows),), seq_len - 1)
            for split, (begin, end) in enumerate(ranges):
                parts[seq, kv_head, :, split], lse[seq, kv_head, :, split] = attend_range_torch(
                    rows,
                    row_at,
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
    return merge_splits_torch(parts.flatten(1, 2), lse.flatten(1, 2)).to(query.dtype)


def merge_splits_torch(parts: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """PyTorch reference of the merge kernel: the parts' mean, weighted with ``exp(lse)``.

    Args:
        parts: ``[..., num_splits, head_dim]``.
        lse: log-sum-exp of each part, ``[..., num_splits]``.

    Returns:
        ``[..., head_dim]``.
    """
    weights = lse.softmax(-1)
    return (weights.unsqueeze(-1) * parts).sum(-2)


def split_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    num_splits: int,
    window: int = NO_WINDOW,
) -> torch.Tensor:
    """Do the work of ``paged_decode``, with ``num_splits`` programs for each of its programs."""
    query = query.contiguous()
    num_seqs, num_heads, head_dim = query.shape
    output = torch.empty_like(query)
    parts = query.new_empty(num_seqs, num_heads, num_splits, head_dim, dtype=torch.float32)
    lse = query.new_empty(num_seqs, num_heads, num_splits, dtype=torch.float32)
    shape = launch_decode(query, key_cache)
    _split_decode_kernel[(num_seqs, shape["KV_HEADS"], num_splits)](
        parts,
        lse,
        query,
        key_cache=key_cache,
        value_cache=value_cache,
        block_table=block_table,
        seq_lens=seq_lens,
        table_stride=block_table.stride(0),
        num_splits=num_splits,
        window=window,
        scale=scale,
        **shape,
    )
    most = triton.next_power_of_2(num_splits)
    _merge_splits_kernel[(num_seqs * num_heads,)](
        output, parts, lse, num_splits,
        HEAD_DIM=head_dim, HEAD_DIM_PADDED=shape["HEAD_DIM_PADDED"], SPLITS=most,
        # all parts of a row are in registers, at most 128 of each thread's
        num_warps=max(4, most * shape["HEAD_DIM_PADDED"] // 2**12),
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def _split_decode_kernel(
    parts, lse, query, key_cache, value_cache, block_table, seq_lens, table_stride, num_splits,
    window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_len = tl.load(seq_lens + seq)
    q, _, inside = load_group(
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
    row_at = tl.full([BLOCK_M], 0, tl.int32) + seq_len - 1
    first = tl.maximum(0, seq_len - window)
    length = tl.cdiv(seq_len - first, num_splits)
    begin = first + split * length
    out, row_lse = attend_range(
        q,
        row_at,
        key_cache,
        value_cache=value_cache,
        table=block_table + seq * table_stride,
        kv_head=kv_head,
        begin=begin,
        end=tl.minimum(seq_len, begin + length),
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
    row, lane = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM_PADDED)
    part = ((seq * KV_HEADS + kv_head) * GROUP + row) * num_splits + split
    tl.store(parts + part[:, None] * HEAD_DIM + lane[None, :], out, mask=inside)
    tl.store(lse + part, row_lse, mask=row < GROUP)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_splits_kernel(
    output, parts, lse, num_splits,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program per row of the output: a sequence's query head."""
    row = tl.program_id(0)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, HEAD_DIM_PADDED)
    part = row * num_splits + split
    exists = split < num_splits
    row_lse = tl.load(lse + part, mask=exists, other=float("-inf"))
    weights = tl.exp(row_lse - tl.max(row_lse, 0))
    weights /= tl.sum(weights, 0)
    inside = exists[:, None] & (lane < HEAD_DIM)[None, :]
    values = tl.load(parts + part[:, None] * HEAD_DIM + lane[None, :], mask=inside, other=0.0)
    merged = tl.sum(weights[:, None] * values, 0)
    tl.store(output + row * HEAD_DIM + lane, merged, mask=lane < HEAD_DIM)
