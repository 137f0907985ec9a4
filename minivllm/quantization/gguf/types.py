"""Block types of GGUF: how many numbers a block has, in how many bytes, and which numbers.

A row of a tensor is cut into blocks. Each has integers of few bits, and one scale (a float16 ``d``)
for all of them. Some have a minimum ``m`` to add; the K types have small scales of their own for
every 16 or 32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_AT_ONCE = 2**16  # blocks, so that what is computed on the way is small
_BIT_PAIRS = np.array([[0], [2], [4], [6]], dtype=np.uint8)


class BlockType(NamedTuple):
    """A way to store numbers."""

    name: str
    block_size: int  # numbers
    block_bytes: int
    dequantize_blocks: Callable[[np.ndarray], np.ndarray]  # uint8 [n, bytes] to [n, numbers]

    def dequantize(self, data: np.ndarray) -> np.ndarray:
        """Numbers of whole blocks: uint8 ``[n * block_bytes]`` to float32 ``[n * block_size]``."""
        blocks = data.reshape(-1, self.block_bytes)
        numbers = np.empty((len(blocks), self.block_size), dtype=np.float32)
        with np.errstate(all="ignore"):  # a scale may be infinite, or no number
            for i in range(0, len(blocks), _AT_ONCE):
                numbers[i : i + _AT_ONCE] = self.dequantize_blocks(blocks[i : i + _AT_ONCE])
        return numbers.reshape(-1)


def _floats(fields: np.ndarray, kind: str = "<f2") -> np.ndarray:
    return np.ascontiguousarray(fields).view(kind).astype(np.float32)


def _nibbles(fields: np.ndarray) -> np.ndarray:
    """``[..., m]`` bytes to ``[..., 2m]``: all low halves, then all high ones."""
    return np.concatenate((fields & 15, fields >> 4), axis=-1)


def _bits(fields: np.ndarray) -> np.ndarray:
    """``[..., m]`` bytes to ``[..., 8m]`` zeros and ones, low first."""
    return np.unpackbits(fields, axis=-1, bitorder="little")


def _signed(integers: np.ndarray, zero: int) -> np.ndarray:
    return integers.astype(np.float32) - np.float32(zero)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _floats(blocks[:, :2]) * _signed(_nibbles(blocks[:, 2:]), 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _floats(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _floats(blocks[:, 2:4])


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    integers = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _floats(blocks[:, :2]) * _signed(integers, 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    integers = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _floats(blocks[:, :2]) * integers + _floats(blocks[:, 2:4])


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _floats(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def _k_scales(fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minimums of 6 bits, eight each: 12 bytes to two ``[n, 8, 1]``.

    The first four of both have the low 6 bits of bytes 0-3 and 4-7, whose high 2 bits are those of
    the last four; their low 4 bits are the halves of bytes 8-11.
    """
    first, second, low = fields[:, :4], fields[:, 4:8], fields[:, 8:]
    scales = np.concatenate((first & 63, low & 15 | first >> 6 << 4), axis=1)
    minimums = np.concatenate((second & 63, low >> 4 | second >> 6 << 4), axis=1)
    return scales[..., None], minimums[..., None]


def _q4_or_5_k(blocks: np.ndarray, integers: np.ndarray) -> np.ndarray:
    """``[n, 8, 32]`` integers times the scales in their blocks."""
    d, d_min = _floats(blocks[:, :2])[..., None], _floats(blocks[:, 2:4])[..., None]
    scales, minimums = _k_scales(blocks[:, 4:16])
    return (d * scales * integers - d_min * minimums).reshape(len(blocks), 256)


def _k_nibbles(fields: np.ndarray) -> np.ndarray:
    """128 bytes to ``[n, 8, 32]``: 32 bytes have two rows, the low halves and the high ones."""
    return _nibbles(fields.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _q4_or_5_k(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = _bits(blocks[:, 16:48, None]).swapaxes(1, 2)  # bit i of a byte is for row i
    return _q4_or_5_k(blocks, _k_nibbles(blocks[:, 48:]) | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _BIT_PAIRS & 3
    integers = _signed(low | high.reshape(-1, 2, 128) << 4, 32).reshape(-1, 16, 16)
    scales = _floats(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)
    return (scales[..., None] * integers).reshape(len(blocks), 256)


# by number in a file
TYPES = {
    0: BlockType("F32", 1, 4, lambda blocks: _floats(blocks, "<f4")),
    1: BlockType("F16", 1, 2, _floats),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, _bf16),
}
