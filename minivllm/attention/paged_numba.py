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

WORTH_SHARING = 1_000_000
"""Multiplications of a layer from which on several threads are woken: about half a millisecond's
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
        if int(metadata.seq_lens.sum()) * query[0].numel() >= WORTH_SHARING:
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
    scratch = np.empty((num_kv_heads, head_dim), np.float32)

    # 1. The score of every visible token: its key times the query, for each head. All heads of a
    #    token are side by side in a block, so memory is read in the order in which it lies.
    for p in range(begin, end):
        key = widen(key_cache[block_table[p // block_size], p % block_size], scratch)
        for h in range(num_heads):
            dot = np.float32(0)
            for d in range(head_dim):
                dot += query[h, d] * key[h // group, d]
            weights[h, p - begin] = dot * scale
    # 2. Softmax. The largest score is taken off first, so that exp cannot overflow.
    for h in range(num_heads):
        weights[h] = np.exp(weights[h] - weights[h].max())
        weights[h] /= weights[h].sum()
    # 3. The sum of the values, each with its weight.
    output[:] = 0
    for p in range(begin, end):
        value = widen(value_cache[block_table[p // block_size], p % block_size], scratch)
        for h in range(num_heads):
            for d in range(head_dim):
                output[h, d] += weights[h, p - begin] * value[h // group, d]


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


def widen(token, scratch):
    """K or V of a token as float32, in ``scratch`` if it has to be converted."""
    raise NotImplementedError("compiled code only: numba takes the overload below")


@overload(widen)
def _widen(token, scratch):
    if token.dtype.name == "uint16":  # bfloat16 is the upper half of a float32

        def convert(token, scratch):
            bits = scratch.view(np.uint32)
            for h in range(token.shape[0]):
                for d in range(token.shape[1]):
                    bits[h, d] = np.uint32(token[h, d]) << 16
            return scratch
    elif token.dtype.name == "int16":
        # float16: move exponent and fraction to where float32 has them, and make up for the other
        # bias of the exponent (15, not 127) with one multiplication. Right for all but inf and NaN.
        def convert(token, scratch):
            bits = scratch.view(np.uint32)
            for h in range(token.shape[0]):
                for d in range(token.shape[1]):
                    half = np.uint32(token[h, d])
                    bits[h, d] = ((half & 0x7FFF) << 13) | ((half & 0x8000) << 16)
                    scratch[h, d] *= np.float32(2.0**112)
            return scratch
    else:

        def convert(token, scratch):
            return token

    return convert
