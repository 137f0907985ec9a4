"""Launch parameters: rows, tile size, warps and stages that the attention kernels are compiled for.

Chosen by what a compiled kernel needs, and not tuned: registers that do not spill, shared memory
that leaves room for other programs, loads of later tiles under way while one is computed. Few
shapes, so that little is compiled; nothing depends on how long sequences are.

What a card has decides: ``tests/compile_kernels.py`` compiles for cards that need not be there.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton


class Card(NamedTuple):
    """A GPU, as far as launch parameters depend on it."""

    capability: tuple[int, int]  # compute capability: 7.5 is Turing, 8.x Ampere and Ada, 9.0 Hopper
    shared_memory: int  # bytes that one program may have

    def has_room(self, itemsize: int) -> bool:
        """True if registers are left for wide tiles, of numbers of ``itemsize`` bytes.

        Triton uses tensor cores since Ampere, for products of 16 bits. Where there are none at
        work, each thread holds what it multiplies; Hopper's compiler still finds room for that.
        """
        return self.capability >= ((8, 0) if itemsize == 2 else (9, 0))


HOPPER = Card((9, 0), 227 * 1024)  # the interpreter runs what an H200 would


@cache
def card_of(device: torch.device) -> Card:
    """The Card of a device: 227 KiB on an H200, 163 on an A100, 99 on smaller GPUs, 64 on a T4."""
    if device.type != "cuda":
        return HOPPER
    properties = torch.cuda.get_device_properties(device)
    shared_memory = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Card((properties.major, properties.minor), shared_memory)


def launch_decode(query: torch.Tensor, key_cache: torch.Tensor) -> dict:
    """Launch settings for one token per sequence: reading K and V is nearly all, so small programs.

    With 16-bit heads of 128 a program has 38 KiB of shared memory, and five fit on a processor.
    A row for each query head of a group; a product on tensor cores has at least 16 rows.

    Args:
        query: ``[num_seqs, num_heads, head_dim]``.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
    """
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    card = card_of(query.device)
    group = query.shape[1] // num_kv_heads
    padded = max(16, triton.next_power_of_2(head_dim))
    shape = {
        "BLOCK_SIZE": block_size,
        "KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "GROUP": group,
        "HEAD_DIM_PADDED": padded,
        # The interpreter multiplies 16-bit floats as if they were integers.
        "UPCAST": query.device.type == "cpu",
        "BLOCK_M": max(16, triton.next_power_of_2(group)),
        "BLOCK_N": max(16, min(64, 4096 // padded)) if card.has_room(query.element_size()) else 16,
        "num_warps": 4 if padded <= 256 else 8,
    }
    return shape | {"num_stages": _stages(shape, query.element_size(), card)}


def launch_varlen(query: torch.Tensor, key_cache: torch.Tensor, max_query_len: int) -> dict:
    """Many tokens: the more rows share a tile of K and V, the less often it is read.

    What bounds the rows is the sum that each keeps in registers. A Hopper GPU's tensor cores take
    64 rows per four warps. In float32 there are none at work (see "ieee" in ``attend_range``).

    Args:
        query, key_cache: as for ``launch_decode``.
        max_query_len: with few new tokens in every sequence, they are launched like decodes.
    """
    shape = launch_decode(query, key_cache)
    card, padded = card_of(query.device), shape["HEAD_DIM_PADDED"]
    if max_query_len * shape["GROUP"] <= shape["BLOCK_M"] or padded > 256:
        return shape
    if not card.has_room(query.element_size()):
        if shape["BLOCK_M"] > 16:  # without the bound the assembler takes fewer, and spills some
            shape |= {"num_warps": 8, "maxnreg": 128}
        return shape
    if query.element_size() == 2:
        rows, tile = (128, 64) if padded <= 128 else (64, 32)
    else:
        rows, tile = (64, 32) if padded <= 128 else (32, 16)
    shape |= {"BLOCK_M": max(rows, shape["BLOCK_M"]), "BLOCK_N": tile, "num_warps": 8}
    return shape | {"num_stages": _stages(shape, query.element_size(), card)}


def _stages(shape: dict, itemsize: int, card: Card) -> int:
    """Stages of the loop: tiles of K and V on their way, besides the two in use; or none.

    Where there is not room for six tiles and the query, a loop keeps fewer under way.
    """
    tile = shape["BLOCK_N"] * shape["HEAD_DIM_PADDED"] * itemsize
    query = shape["BLOCK_M"] * shape["HEAD_DIM_PADDED"] * itemsize
    return 5 if 6 * tile + query <= card.shared_memory else 3
