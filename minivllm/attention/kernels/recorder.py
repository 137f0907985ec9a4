"""Load recorder: which program of a kernel loads which block, under the interpreter.

The interpreter runs a kernel's programs one after the other and turns every ``tl.load`` into a call
of one method. ``record_loads`` stands in that method's way and notes the addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from triton.runtime.interpreter import interpreter_builder


@dataclass(frozen=True)
class BlockLoad:
    """One ``tl.load`` of one program."""

    program: tuple[int, int, int]  # its ``tl.program_id`` in the three directions of the grid
    blocks: tuple[int, ...]  # the physical blocks it touched, in the order of their first touch


@contextmanager
def record_loads(cache: torch.Tensor) -> Iterator[list[BlockLoad]]:
    """Context manager: a list that records every load from ``cache``.

    Args:
        cache: a layer's K, or V, ``[num_blocks, block_size, num_kv_heads, head_dim]``, on a CPU.
    """
    loads: list[BlockLoad] = []
    original = interpreter_builder.create_masked_load
    first, block_bytes = cache.data_ptr(), cache[0].nbytes

    def load_and_tell(pointers, mask, *args):
        offsets = pointers.data[mask.data].astype("int64") - first
        offsets = offsets[(offsets >= 0) & (offsets < cache.nbytes)]
        if len(offsets):
            blocks = dict.fromkeys((offsets // block_bytes).tolist())
            loads.append(BlockLoad(interpreter_builder.grid_idx, tuple(blocks)))
        return original(pointers, mask, *args)

    interpreter_builder.create_masked_load = load_and_tell
    try:
        yield loads
    finally:
        del interpreter_builder.create_masked_load
