"""Paged decode as loops over memory, compiled by numba: the definition, and fast on a CPU.

Blocks are read where they are, through the block table, so that nothing is copied or padded. Numba
is an optional extra (``pip install "minivllm[numba]"``), and this file is imported only when it is
used. The first call of all compiles for some seconds; later ones find the machine code on disk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads, types
from numba.extending import overload

from minivllm.attention.paged_torch import PagedTorch

# Sums may be reordered, which is what lets a processor add 16 numbers at once; the rest of
# fastmath (no NaN, no infinity) is not wanted. numpy's error model divides without asking for 0.
_FAST: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy"}
_LN2 = math.log(2)

WORTH_SHARING = 1_000_000
"""Query numbers times keys from which on several threads are woken: a quarter of a millisecond's
work. On a busy machine waking one can take longer than that."""


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
        decode = _decode_in_turn
        if metadata.max_seq_len * query.numel() >= WORTH_SHARING:
            decode = _decode_shared
            num_threads = torch.get_num_threads()
            set_num_threads(min(num_threads, config.NUMBA_NUM_THREADS))
            torch.set_num_threads(num_threads)  # numba's first threads change torch's number
        decode(
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


@njit(cache=True, **_FAST)
def _paged_decode(output, query, key_cache, value_cache, block_table, end, scale, window):
    """The newest token of one sequence of length ``end``. In float32, whatever the cache is in."""
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    num_heads = len(query)
    group = num_heads // num_kv_heads  # query heads that share one KV head
    begin = max(0, end - window)
    weights = np.empty((num_heads, end - begin), np.float32)
    largest = np.full(num_heads, -np.inf, np.float32)

    # 1. The score of every visible token: its key times the query, for each head. All heads of a
    #    token are side by side in a block, so memory is read in the order in which it lies.
    for p in range(begin, end):
        block, slot = block_table[p // block_size], p % block_size
        for kv_head in range(num_kv_heads):
            key = key_cache[block, slot, kv_head]
            for h in range(kv_head * group, (kv_head + 1) * group):
                dot = np.float32(0)
                for d in range(head_dim):
                    dot += query[h, d] * widen(key[d])
                weights[h, p - begin] = dot * scale
                largest[h] = max(largest[h], dot * scale)
    # 2. Softmax. The largest score is taken off first, so that exp cannot overflow.
    for h in range(num_heads):
        total = np.float32(0)
        for i in range(end - begin):
            weights[h, i] = _exp(weights[h, i] - largest[h])
            total += weights[h, i]
        weights[h] /= total
    # 3. The sum of the values, each with its weight.
    output[:] = 0
    for p in range(begin, end):
        block, slot = block_table[p // block_size], p % block_size
        for kv_head in range(num_kv_heads):
            value = value_cache[block, slot, kv_head]
            for h in range(kv_head * group, (kv_head + 1) * group):
                weight = weights[h, p - begin]
                for d in range(head_dim):
                    output[h, d] += weight * widen(value[d])


@njit(cache=True, **_FAST)
def _exp(x):
    """e to the x, for x <= 0. The library's takes one number a call; this one, 16 at once.

    x is n times ln 2, which goes into the exponent bits of a float32, and a rest r of at most half
    of ln 2, for which six terms of the series are exact to 5e-7.
    """
    x = max(x, np.float32(-87))  # e to the -87 is about the smallest normal float32
    n = np.floor(x * np.float32(1 / _LN2) + np.float32(0.5))
    r = x - n * np.float32(_LN2)
    series = np.float32(1)
    for i in range(6, 0, -1):  # 1 + r/1 (1 + r/2 (1 + r/3 (...)))
        series = np.float32(1) + series * r * np.float32(1 / i)
    return series * np.int32((np.int32(n) + 127) << 23).view(np.float32)


@njit(cache=True)
def _decode_in_turn(output, query, key_cache, value_cache, block_table, seq_lens, scale, window):
    for i in range(len(query)):
        _paged_decode(
            output[i], query[i], key_cache, value_cache, block_table[i], seq_lens[i], scale, window
        )


@njit(parallel=True, cache=True)
def _decode_shared(output, query, key_cache, value_cache, block_table, seq_lens, scale, window):
    for i in prange(len(query)):  # each on any thread
        _paged_decode(
            output[i], query[i], key_cache, value_cache, block_table[i], seq_lens[i], scale, window
        )


def _as_numpy(cache: torch.Tensor) -> np.ndarray:
    """The same memory; 16-bit numbers, which numba does not know, as the integers of their bits."""
    if cache.dtype == torch.bfloat16:
        return cache.view(torch.uint16).numpy()
    if cache.dtype == torch.float16:
        return cache.view(torch.int16).numpy()
    return cache.numpy()


def widen(number):
    """A number of the cache as float32."""
    raise NotImplementedError("compiled code only: numba takes the overload below")


@overload(widen)
def _widen(number):
    if number == types.uint16:  # bfloat16 is the upper half of a float32
        return lambda number: np.uint32(np.uint32(number) << 16).view(np.float32)
    if number == types.int16:
        # float16: move exponent and fraction to where float32 has them, and make up for the other
        # bias of the exponent (15, not 127) with one multiplication. Right for all but inf and NaN.
        def convert(number):
            half = np.uint32(number)
            bits = np.uint32(((half & 0x7FFF) << 13) | ((half & 0x8000) << 16))
            return bits.view(np.float32) * np.float32(2.0**112)

        return convert
    return lambda number: number
