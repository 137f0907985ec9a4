"""Block types of GGUF: how many numbers a block has, in how many bytes, and which numbers.

A row of a tensor is cut into blocks. Each has integers of few bits, and one scale (a float16 ``d``)
for all of them. Some have a minimum ``m`` to add; the K types have small scales of their own for
every 16 or 32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from minivllm.quantization.base_config import QuantizedWeight


class BlockType(NamedTuple):
    """A way to store numbers."""

    name: str
    block_size: int  # numbers; 1: they are floats
    block_bytes: int
    unpack: Callable[[torch.Tensor], QuantizedWeight]  # of uint8 [n, bytes], a row for each block

    def dequantize(self, data: torch.Tensor) -> torch.Tensor:
        """Numbers of whole blocks: uint8 ``[n * block_bytes]`` to float32 ``[n * block_size]``."""
        return self.unpack(data.view(-1, self.block_bytes)).dequantize().flatten()


def _floats(fields: torch.Tensor, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return fields.contiguous().view(dtype)


def _nibbles(fields: torch.Tensor) -> torch.Tensor:
    """``[..., m]`` bytes to ``[..., 2m]``: all low halves, then all high ones."""
    return torch.cat((fields & 15, fields >> 4), -1)


def _bits(fields: torch.Tensor, each: int = 1) -> torch.Tensor:
    """``[..., m]`` bytes to ``[..., m, 8 / each]``: numbers of ``each`` bits, low first."""
    shifts = torch.arange(0, 8, each, dtype=torch.uint8, device=fields.device)
    return (fields.unsqueeze(-1) >> shifts) & (2**each - 1)


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], QuantizedWeight]:
    def unpack(blocks: torch.Tensor) -> QuantizedWeight:
        return QuantizedWeight(_floats(blocks, dtype), torch.ones(len(blocks), 1))

    return unpack


def _q4_0(blocks: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight(_nibbles(blocks[:, 2:]), _floats(blocks[:, :2]), 8)


def _q4_1(blocks: torch.Tensor) -> QuantizedWeight:
    d, m = _floats(blocks[:, :2]), _floats(blocks[:, 2:4])
    return QuantizedWeight(_nibbles(blocks[:, 4:]), d, mins=m)


def _five_bits(fields: torch.Tensor) -> torch.Tensor:
    """Four bytes of fifth bits, and the nibbles below them: int8."""
    fifth = _bits(fields[:, :4]).flatten(1)
    return (_nibbles(fields[:, 4:]) | fifth << 4).view(torch.int8)


def _q5_0(blocks: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight(_five_bits(blocks[:, 2:]) - 16, _floats(blocks[:, :2]))


def _q5_1(blocks: torch.Tensor) -> QuantizedWeight:
    d, m = _floats(blocks[:, :2]), _floats(blocks[:, 2:4])
    return QuantizedWeight(_five_bits(blocks[:, 4:]), d, mins=m)


def _q8_0(blocks: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight(blocks[:, 2:].view(torch.int8), _floats(blocks[:, :2]))


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minimums of eight groups, float32 ``[n, 8]``.

    Both are products with a number of 6 bits. The first four of both have the low 6 bits of bytes
    0-3 and 4-7, whose high 2 bits are those of the last four; their low 4 bits are the halves of
    bytes 8-11.
    """
    d = _floats(blocks[:, :2]).float()
    d_min = _floats(blocks[:, 2:4]).float()
    first = blocks[:, 4:8]
    second = blocks[:, 8:12]
    low = blocks[:, 12:16]
    scales = torch.cat((first & 63, low & 15 | first >> 6 << 4), 1)
    minimums = torch.cat((second & 63, low >> 4 | second >> 6 << 4), 1)
    return d * scales, -(d_min * minimums)


def _k_nibbles(fields: torch.Tensor) -> torch.Tensor:
    """128 bytes to ``[n, 8, 32]``: 32 bytes have two rows, the low halves and the high ones."""
    return _nibbles(fields.unflatten(1, (4, 32))).view(-1, 8, 32)


def _q4_k(blocks: torch.Tensor) -> QuantizedWeight:
    scales, mins = _k_scales(blocks)
    return QuantizedWeight(_k_nibbles(blocks[:, 16:]).flatten(1), scales, mins=mins)


def _q5_k(blocks: torch.Tensor) -> QuantizedWeight:
    scales, mins = _k_scales(blocks)
    fifth = _bits(blocks[:, 16:48]).transpose(1, 2)  # bit i of a byte is for row i
    codes = (_k_nibbles(blocks[:, 48:]) | fifth << 4).flatten(1)
    return QuantizedWeight(codes.view(torch.int8), scales, mins=mins)


def _q6_k(blocks: torch.Tensor) -> QuantizedWeight:
    low = _nibbles(blocks[:, :128].unflatten(1, (2, 64)))
    high = _bits(blocks[:, 128:192].unflatten(1, (2, 32)), 2)
    codes = low | high.transpose(2, 3).flatten(2) << 4
    scales = _floats(blocks[:, 208:]).float() * blocks[:, 192:208].view(torch.int8)
    return QuantizedWeight(codes.flatten(1).view(torch.int8) - 32, scales)


# by number in a file
TYPES = {
    0: BlockType("F32", 1, 4, _plain(torch.float32)),
    1: BlockType("F16", 1, 2, _plain(torch.float16)),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, _plain(torch.bfloat16)),
}
