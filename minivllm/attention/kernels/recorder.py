"""Recorder: which program of a kernel loads and stores where, under the interpreter.

The interpreter runs a kernel's programs one after the other and turns every ``tl.load`` and
``tl.store`` into a call of one method. ``watch_memory`` stands in the way of these methods;
``record_loads`` notes by it which blocks of a cache are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import interpreter_builder

Program = tuple[int, int, int]  # its ``tl.program_id`` in the three directions of the grid
LARGE = 1_000_000


@dataclass(frozen=True)
class BlockLoad:
    """One ``tl.load`` of one program."""

    program: Program
    blocks: tuple[int, ...]  # the physical blocks it touched, in the order of their first touch


@contextmanager
def watch_memory(
    on_load: Callable[[Program, np.ndarray, bool], None],
    on_store: Callable[[Program, np.ndarray], None],
) -> Iterator[None]:
    """Context manager: tell of every load and store of interpreted kernels, before it happens.

    What a mask leaves out of a load without ``other=`` may be anything on a GPU. Here it becomes
    NaN, or a large number, so that it cannot pass for a 0.

    Args:
        on_load: called with the program, the addresses that are read, in bytes, and whether some
            numbers are left out and have no ``other=``.
        on_store: called with the program and the addresses that are written.
    """
    builder = interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    update, exchange = builder.create_atomic_rmw, builder.create_atomic_cas

    def watched_load(pointers, mask, other, *args):
        is_open = other is None and not mask.data.all()
        on_load(builder.grid_idx, _addresses(pointers, mask), is_open)
        found = load(pointers, mask, other, *args)
        if is_open:
            _fill(found.data, ~mask.data)
        return found

    def watched_store(pointers, value, mask, *args):
        on_store(builder.grid_idx, _addresses(pointers, mask))
        return store(pointers, value, mask, *args)

    def watched_update(operation, pointers, value, mask, *args):
        on_load(builder.grid_idx, _addresses(pointers, mask), False)
        on_store(builder.grid_idx, _addresses(pointers, mask))
        return update(operation, pointers, value, mask, *args)

    def watched_exchange(pointers, *args):
        on_load(builder.grid_idx, _addresses(pointers), False)
        on_store(builder.grid_idx, _addresses(pointers))
        return exchange(pointers, *args)

    watched = {
        "create_masked_load": watched_load, "create_masked_store": watched_store,
        "create_atomic_rmw": watched_update, "create_atomic_cas": watched_exchange,
    }  # fmt: skip
    # others may stand in the same way
    before = {name: vars(builder)[name] for name in watched if name in vars(builder)}
    vars(builder).update(watched)
    try:
        yield
    finally:
        for name in watched:
            del vars(builder)[name]
        vars(builder).update(before)


@contextmanager
def record_loads(cache: torch.Tensor) -> Iterator[list[BlockLoad]]:
    """Context manager: a list that records every load from ``cache``.

    Args:
        cache: a layer's K, or V, ``[num_blocks, block_size, num_kv_heads, head_dim]``, on a CPU.
    """
    loads: list[BlockLoad] = []
    first, block_bytes = cache.data_ptr(), cache[0].nbytes

    def note(program: Program, addresses: np.ndarray, is_open: bool) -> None:
        offsets = addresses - first
        offsets = offsets[(offsets >= 0) & (offsets < cache.nbytes)]
        if len(offsets):
            blocks = dict.fromkeys((offsets // block_bytes).tolist())
            loads.append(BlockLoad(program, tuple(blocks)))

    with watch_memory(note, lambda program, addresses: None):
        yield loads


def _addresses(pointers: Any, mask: Any = None) -> np.ndarray:
    """Addresses of the numbers that a mask lets through."""
    chosen = pointers.data.ravel() if mask is None else pointers.data[mask.data]
    return chosen.astype("int64")


def _fill(numbers: np.ndarray, left_out: np.ndarray) -> None:
    """Put NaN, or a large number, where a load without ``other=`` may find anything."""
    if numbers.dtype.kind == "f":
        numbers[left_out] = np.nan
    else:
        numbers[left_out] = min(np.iinfo(numbers.dtype).max, LARGE)
