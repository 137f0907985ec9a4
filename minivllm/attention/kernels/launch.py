"""Launch parameters: rows, tile size, warps and stages that the attention kernels are compiled for.

Chosen by what a compiled kernel needs, and not tuned: registers that do not spill, shared memory
that leaves room for other programs, loads of later tiles under way while one is computed. Few
shapes, so that little is compiled; nothing depends on how long sequences are.
"""

from __future__ import annotations

from functools import cache

import torch
import triton


def launch_decode(query: torch.Tensor, key_cache: torch.Tensor) -> dict:
    """Launch settings for one token per sequence: reading K and V is nearly all, so small programs.

    With 16-bit heads of 128 a program has 38 KiB of shared memory, and five fit on a processor.
    A row for each query head of a group; a product on tensor cores has at least 16 rows.

    Args:
        query: ``[num_seqs, num_heads, head_dim]``.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
    """
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    group = query.shape[1] // num_kv_heads
    padded = max(16, triton.next_power_of_2(head_dim))
    return {
        "BLOCK_SIZE": block_size,
        "KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "GROUP": group,
        "HEAD_DIM_PADDED": padded,
        # The interpreter multiplies 16-bit floats as if they were integers.
        "UPCAST": query.device.type == "cpu",
        "BLOCK_M": max(16, triton.next_power_of_2(group)),
        "BLOCK_N": max(16, min(64, 4096 // padded)),
        "num_warps": 4,
        "num_stages": 5,
    }


def launch_varlen(query: torch.Tensor, key_cache: torch.Tensor, max_query_len: int) -> dict:
    """Many tokens: the more rows share a tile of K and V, the less often it is read.

    What bounds the rows is the sum that each keeps in registers. A Hopper GPU's tensor cores take
    64 rows per four warps. In float32 there are none at work (see "ieee" in ``attend_range``).

    Args:
        query, key_cache: as for ``launch_decode``.
        max_query_len: with few new tokens in every sequence, they are launched like decodes.
    """
    shape = launch_decode(query, key_cache)
    if max_query_len * shape["GROUP"] <= shape["BLOCK_M"]:
        return shape
    if query.element_size() == 2:
        rows, tile = (128, 64) if shape["HEAD_DIM_PADDED"] <= 128 else (64, 32)
    else:
        rows, tile = (64, 32) if shape["HEAD_DIM_PADDED"] <= 128 else (32, 16)
    shape |= {"BLOCK_M": max(rows, shape["BLOCK_M"]), "BLOCK_N": tile, "num_warps": 8}
    # Two tiles of K and V on their way, besides the one in use; where memory is short, none.
    if _shared_memory(query.device) < 160 * 1024:
        shape["num_stages"] = 3
    return shape


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have: 227 KiB on an H200, 163 on an A100, 99 on smaller GPUs."""
    if device.type != "cuda":
        return 227 * 1024
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
