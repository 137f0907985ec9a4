"""Paged attention as three loops over memory, compiled by numba: the definition, and fast on a CPU.

Blocks are read where they are, through the block table, so that nothing is copied or padded. Numba
is an optional extra (``pip install "minivllm[numba]"``), and this file is imported only when it is
used. The first call of all compiles for some seconds; later ones find the machine code on disk.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads
from numba.extending import overload

from minivllm.attention.backend import AttentionBackend

# Sums may be reordered, which is what lets a processor add 16 numbers at once; the rest of
# fastmath (no NaN, no infinity) is not wanted. numpy's error model divides without asking for 0.
_FAST = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy"}


class PagedNumba(AttentionBackend):
    """For a CPU; computes in float32 whatever the cache is kept in."""

    name = "paged_numba"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        output = torch.empty(query.shape, dtype=torch.float32)
        set_num_threads(min(torch.get_num_threads(), config.NUMBA_NUM_THREADS))
        _attend(
            output.numpy(),
            query.float().contiguous().numpy(),
            _as_numpy(key_cache),
            _as_numpy(value_cache),
            metadata.query_start_loc.numpy(),
            metadata.seq_lens.numpy(),
            metadata.block_table.numpy(),
            np.float32(scale),
            sliding_window or np.iinfo(np.int64).max,
        )
        return output.to(query.dtype)


@njit(parallel=True, cache=True, **_FAST)
def _attend(
    output, query, key_cache, value_cache, query_start_loc, seq_lens, block_table, scale, window
):
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    num_rows = len(query)
    group = query.shape[1] // num_kv_heads
    for item in prange(num_kv_heads * num_rows):  # for every KV head, for every row: on any thread
        kv_head, row = item // num_rows, item % num_rows
        first_head = kv_head * group
        seq = np.searchsorted(query_start_loc, row, side="right") - 1
        position = seq_lens[seq] - (query_start_loc[seq + 1] - row)
        begin = max(0, position - window + 1)
        weights = np.empty((group, position + 1 - begin), np.float32)
        scratch = np.empty(head_dim, np.float32)

        # 1. The score of every visible token: its key times the query, for all heads of the group.
        for p in range(begin, position + 1):
            key = key_cache[block_table[seq, p // block_size], p % block_size, kv_head]
            key = widen(key, scratch)
            for g in range(group):
                dot = np.float32(0)
                for d in range(head_dim):
                    dot += query[row, first_head + g, d] * key[d]
                weights[g, p - begin] = dot * scale
        # 2. Softmax. The largest score is taken off first, so that exp cannot overflow.
        for g in range(group):
            weights[g] = np.exp(weights[g] - weights[g].max())
            weights[g] /= weights[g].sum()
        # 3. The sum of the values, each with its weight.
        output[row, first_head : first_head + group] = 0
        for p in range(begin, position + 1):
            value = value_cache[block_table[seq, p // block_size], p % block_size, kv_head]
            value = widen(value, scratch)
            for g in range(group):
                for d in range(head_dim):
                    output[row, first_head + g, d] += weights[g, p - begin] * value[d]


def _as_numpy(cache: torch.Tensor) -> np.ndarray:
    """The same memory; 16-bit numbers, which numba does not know, as the integers of their bits."""
    if cache.dtype == torch.bfloat16:
        return cache.view(torch.uint16).numpy()
    if cache.dtype == torch.float16:
        return cache.view(torch.int16).numpy()
    return cache.numpy()


def widen(row, scratch):
    """A row of the cache as float32, in ``scratch`` if it has to be converted."""
    raise NotImplementedError("compiled code only: numba takes the overload below")


@overload(widen)
def _widen(row, scratch):
    if row.dtype.name == "uint16":  # bfloat16 is the upper half of a float32

        def convert(row, scratch):
            scratch.view(np.uint32)[:] = row.astype(np.uint32) << 16
            return scratch
    elif row.dtype.name == "int16":
        # float16: move exponent and fraction to where float32 has them, and make up for the other
        # bias of the exponent (15, not 127) with one multiplication. Right for all but inf and NaN.
        def convert(row, scratch):
            bits = scratch.view(np.uint32)
            for d in range(len(row)):
                half = np.uint32(row[d])
                bits[d] = ((half & 0x7FFF) << 13) | ((half & 0x8000) << 16)
                scratch[d] *= np.float32(2.0**112)
            return scratch
    else:

        def convert(row, scratch):
            return row

    return convert
