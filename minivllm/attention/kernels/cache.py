"""Cache kernels: write new tokens' K and V into their slots; copy whole blocks.

(vLLM 0.6.6: reshape_and_cache_flash and copy_blocks, csrc/cache_kernels.cu)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minivllm.utils.tensors import make_tensor


def write_slots_torch(key, value, key_cache, value_cache, slot_mapping) -> None:
    """PyTorch reference of ``write_slots``."""
    key_cache.flatten(0, 1)[slot_mapping] = key
    value_cache.flatten(0, 1)[slot_mapping] = value


def write_slots(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write each token's K and V, ``[num_tokens, num_kv_heads, head_dim]``, into its slot."""
    key, value = key.flatten(1), value.flatten(1)  # rows may lie apart, as in a fused projection
    row_size = key.shape[1]
    _write_slots_kernel[(len(key),)](
        key,
        value,
        key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping,
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        ROW_SIZE=row_size,
        TILE_SIZE=triton.next_power_of_2(row_size),
    )


@triton.jit
def _write_slots_kernel(
    key, value, key_cache, value_cache, slot_mapping, key_stride, value_stride,
    ROW_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    """One program per token. Lanes beyond the row's end are masked: lanes come in powers of 2."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)  # int64: a large pool has more numbers than int32 counts
    lane = tl.arange(0, TILE_SIZE)
    inside = lane < ROW_SIZE
    k = tl.load(key + token * key_stride + lane, mask=inside)
    v = tl.load(value + token * value_stride + lane, mask=inside)
    tl.store(key_cache + slot * ROW_SIZE + lane, k, mask=inside)
    tl.store(value_cache + slot * ROW_SIZE + lane, v, mask=inside)


def copy_blocks_torch(data: torch.Tensor, src: list[int], dst: list[int]) -> None:
    """PyTorch reference of ``copy_blocks``."""
    data[:, :, dst] = data[:, :, src]


def copy_blocks(data: torch.Tensor, src: list[int], dst: list[int]) -> None:
    """Copy whole blocks, K and V, in every layer.

    Args:
        data: ``[num_layers, 2, num_blocks, ...]``.
        src, dst: block ids. No block may be in both: programs run in no order.
    """
    pairs = make_tensor([src, dst], "int64", data.device)
    num_layers, _, num_blocks = data.shape[:3]
    block_numel = data[0, 0, 0].numel()
    _copy_blocks_kernel[(len(src), num_layers * 2)](
        data, pairs, len(src), num_blocks, BLOCK_NUMEL=block_numel, TILE_SIZE=1024
    )


@triton.jit(do_not_specialize=["num_pairs"])
def _copy_blocks_kernel(
    data, pairs, num_pairs, num_blocks, BLOCK_NUMEL: tl.constexpr, TILE_SIZE: tl.constexpr
):
    """One program per pair and plane; a plane is the K, or the V, of one layer."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    src = tl.load(pairs + pair)
    dst = tl.load(pairs + num_pairs + pair)
    source = data + (plane * num_blocks + src) * BLOCK_NUMEL
    target = data + (plane * num_blocks + dst) * BLOCK_NUMEL
    for start in range(0, BLOCK_NUMEL, TILE_SIZE):
        lane = start + tl.arange(0, TILE_SIZE)
        inside = lane < BLOCK_NUMEL
        tl.store(target + lane, tl.load(source + lane, mask=inside), mask=inside)
