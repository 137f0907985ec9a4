"""Paged decode as loops over memory, compiled by numba: the definition, and fast on a CPU.

Blocks are read where they are, through the block table, so that nothing is copied or padded. Numba
is an optional extra (``pip install "minivllm[numba]"``), and this file is imported only when it is
used. The first call of all compiles for some seconds; later ones find the machine code on disk.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads
from numba.extending import overload

from minivllm.attention.paged_torch import PagedTorch

# Sums may be reordered, which is what lets a processor add 16 numbers at once; the rest of
# fastmath (no NaN, no infinity) is not wanted. numpy's error model divides without asking for 0.
_FAST = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy"}


class PagedNumba(PagedTorch):
    """Loops for batches of decodes; torch for the rest.

    A decode reads each key for a handful of query heads, so that all depends on how it is read. A
    step with prompts is products of large matrices, and those are best left to torch.
    """

    name = "paged_numba"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        if metadata.max_query_len > 1:
            return super().attend(query, key_cache, value_cache, metadata, scale, sliding_window)
        output = torch.empty(query.shape, dtype=torch.float32)
        set_num_threads(min(torch.get_num_threads(), config.NUMBA_NUM_THREADS))
        _paged_decode(
            output.numpy(),
            query.float().contiguous().numpy(),
            _as_numpy(key_cache),
            _as_numpy(value_cache),
            metadata.block_table.numpy(),
            metadata.seq_lens.numpy(),
            np.float32(scale),
            sliding_window or np.iinfo(np.int64).max,
        )
        return output.to(query.dtype)


@njit(parallel=True, cache=True, **_FAST)
def _paged_decode(output, query, key_cache, value_cache, block_table, seq_lens, scale, window):
    """One new token per sequence, its last. All in float32, whatever the cache is kept in."""
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads  # query heads that share one KV head
    for item in prange(len(query) * num_kv_heads):  # each sequence's KV heads, on any thread
        seq, kv_head = item // num_kv_heads, item % num_kv_heads
        first_head = kv_head * group
        begin = max(0, seq_lens[seq] - window)
        weights = np.empty((group, seq_lens[seq] - begin), np.float32)
        scratch = np.empty(head_dim, np.float32)

        # 1. The score of every visible token: its key times the query, for all heads of the group.
        for p in range(begin, seq_lens[seq]):
            block = block_table[seq, p // block_size]
            key = widen(key_cache[block, p % block_size, kv_head], scratch)
            for g in range(group):
                dot = np.float32(0)
                for d in range(head_dim):
                    dot += query[seq, first_head + g, d] * key[d]
                weights[g, p - begin] = dot * scale
        # 2. Softmax. The largest score is taken off first, so that exp cannot overflow.
        for g in range(group):
            weights[g] = np.exp(weights[g] - weights[g].max())
            weights[g] /= weights[g].sum()
        # 3. The sum of the values, each with its weight.
        output[seq, first_head : first_head + group] = 0
        for p in range(begin, seq_lens[seq]):
            block = block_table[seq, p // block_size]
            value = widen(value_cache[block, p % block_size, kv_head], scratch)
            for g in range(group):
                for d in range(head_dim):
                    output[seq, first_head + g, d] += weights[g, p - begin] * value[d]


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
