"""Compiled layers: a decoder's layers as loops over arrays, with no torch between them.

The same loops as the modules call, in the same order, and so the same numbers. But a module, a
method and an operation of torch bring some microseconds of code each, and between two products that
code comes from far away, since weights have filled the processor's caches: in a step of decodes it
is a quarter of the time. (On a GPU CUDA graphs spare the same: ``worker/cuda_graph_runner.py``.)

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_cache import LayerKVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.quantized_kv import QuantizedKVCache
from minivllm.attention.step import LayerAttention, StepAttention
from minivllm.cpu.attention.inputs import EVERYTHING, LoopInputs
from minivllm.cpu.attention.paged_numba import PagedNumba, attend, plan_for, write_slots_loop
from minivllm.cpu.fused import (
    add_rms_norm_loop,
    rms_norm_loop,
    rotary_embedding_loop,
    silu_and_mul_loop,
)
from minivllm.cpu.lora import add_adapters_to
from minivllm.distributed.group import Group
from minivllm.lora.layers import LoRALinearMethod
from minivllm.models import ops
from minivllm.models.decoder import Attention, Decoder, DecoderLayer
from minivllm.models.layers import GatedMLP, RMSNorm
from minivllm.models.linear import (
    ArrayProduct,
    Linear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from minivllm.utils.tensors import as_numpy, as_tensor

# K and V, [num_blocks, block_size, num_kv_heads, head_dim]
Caches = tuple[np.ndarray, np.ndarray] | QuantizedKVCache
Norm = Callable[..., np.ndarray]  # of an array, and maybe of the residual to add it to
Kind = TypeVar("Kind", bound=nn.Module)


class CPULayers:
    """All layers of a decoder, its ``compiled_layers``.

    Made when weights are laid out as they will stay. A layer that is not known runs as its module.
    """

    backend_class: type[AttentionBackend] = PagedNumba  # whose loops are called here

    def __init__(self, decoder: Decoder, dtype: torch.dtype):
        self.dtype = dtype
        self.layers = [
            (CPULayer if is_known(layer) else ModuleLayer)(layer, dtype) for layer in decoder.layers
        ]

    def __call__(
        self,
        x: torch.Tensor,
        cos_sin: list[torch.Tensor | None],
        attention: StepAttention,
        residual: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run all layers: see ``Decoder.run_layers``."""
        # Tensors as arrays: the same memory.
        hidden = as_numpy(x)
        before = None if residual is None else as_numpy(residual)
        for index, layer in enumerate(self.layers):
            metadata = attention.metadata[index]
            slots = metadata.slot_mapping.numpy()
            table = cos_sin[index]
            assert table is not None, "known layers turn queries and keys"
            cache = attention.kv_cache.layers[index]
            caches: Caches
            if isinstance(cache, QuantizedKVCache):
                caches = cache
            else:
                caches = as_numpy(cache[0]), as_numpy(cache[1])
            hidden, before = layer(
                hidden,
                before,
                as_numpy(table),
                slots=slots,
                caches=caches,
                metadata=metadata,
            )
        assert before is not None, "a decoder has layers"
        return as_tensor(hidden, self.dtype), as_tensor(before, self.dtype)


class ModuleLayer:
    """A layer that runs as its module, between compiled ones."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype):
        self.layer = layer
        self.dtype = dtype
        self.backend = PagedNumba()

    def __call__(
        self,
        x: np.ndarray,
        residual: np.ndarray | None,
        cos_sin: np.ndarray,
        slots: np.ndarray,
        caches: Caches,
        metadata: AttentionMetadata,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the layer: see ``CPULayer.__call__``."""
        before = None if residual is None else as_tensor(residual, self.dtype)
        cache: LayerKVCache
        if isinstance(caches, QuantizedKVCache):
            cache = caches
        else:
            cache = as_tensor(caches[0], self.dtype), as_tensor(caches[1], self.dtype)
        attention = LayerAttention(self.backend, cache, metadata)
        hidden = as_tensor(x, self.dtype)
        output = self.layer(hidden, before, as_tensor(cos_sin, self.dtype), attention)
        return as_numpy(output[0]), as_numpy(output[1])


class CPULayer:
    """One layer: what ``DecoderLayer.forward`` does, and what that calls."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype):
        assert isinstance(layer, DecoderLayer), "it is known"
        assert isinstance(layer.mlp, GatedMLP), "it is known"
        attention = layer.self_attn
        mlp = layer.mlp
        self.input_norm = _norm(layer.input_layernorm)
        self.post_norm = _norm(layer.post_attention_layernorm)
        self.q_norm = _head_norm(attention.q_norm)
        self.k_norm = _head_norm(attention.k_norm)
        self.qkv = _product(attention.qkv_proj, dtype)
        self.o = _product(attention.o_proj, dtype)
        self.gate_up = _product(mlp.gate_up_proj, dtype)
        self.down = _product(mlp.down_proj, dtype)
        self.backend = PagedNumba()
        self.head_dim = attention.qkv_proj.head_dim
        self.num_heads, self.num_kv_heads, _ = attention.qkv_proj.num_heads
        self.scale = np.float32(attention.scale)
        self.sliding_window = attention.sliding_window

    def __call__(
        self,
        x: np.ndarray,
        residual: np.ndarray | None,
        cos_sin: np.ndarray,
        slots: np.ndarray,
        caches: Caches,
        metadata: AttentionMetadata,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the layer: see ``DecoderLayer.forward``. The residual is changed in place."""
        normed = self.input_norm(x, residual)
        residual = x if residual is None else residual
        x = self.o(self._attention(self.qkv(normed), cos_sin, slots, caches, metadata))
        gate_up = self.gate_up(self.post_norm(x, residual))
        hidden = np.empty((len(x), gate_up.shape[1] // 2), x.dtype)
        silu_and_mul_loop(gate_up.size, hidden, gate_up)
        return self.down(hidden), residual

    def _attention(
        self,
        qkv: np.ndarray,
        cos_sin: np.ndarray,
        slots: np.ndarray,
        caches: Caches,
        metadata: AttentionMetadata,
    ) -> np.ndarray:
        """Attention between its GEMMs: ``[num_tokens, num_heads * head_dim]``.

        Loops know no names of arguments: they are compiled by their places.
        """
        # 1. Queries, keys and values: views of the product, each with its row's length.
        keys = self.num_heads * self.head_dim  # where a row's keys begin
        values = keys + self.num_kv_heads * self.head_dim
        query, q_stride = self._part(qkv, 0, keys, self.q_norm)
        key, k_stride = self._part(qkv, keys, values, self.k_norm)
        value, v_stride = self._part(qkv, values, qkv.shape[1])
        # 2. Positions.
        rotary_embedding_loop(
            len(qkv) * keys,
            query, q_stride, key, k_stride, cos_sin,
            self.num_heads, self.num_kv_heads, self.head_dim,
        )  # fmt: skip
        if isinstance(caches, QuantizedKVCache):
            q = self._heads(query, q_stride, (len(qkv), self.num_heads))
            k = self._heads(key, k_stride, (len(qkv), self.num_kv_heads))
            v = self._heads(value, v_stride, (len(qkv), self.num_kv_heads))
            return self._quantized_attention(q, k, v, caches=caches, metadata=metadata)
        # 3. K and V into their slots, which attention reads as it does earlier ones.
        key_cache, value_cache = caches
        write_slots_loop(
            2 * len(qkv) * (values - keys),
            key, k_stride, value, v_stride, key_cache, value_cache, slots,
        )  # fmt: skip
        # 4. Attention.
        output = np.empty((len(qkv), self.num_heads, self.head_dim), qkv.dtype)
        lse = np.empty((len(qkv), self.num_heads), np.float32)
        inputs = LoopInputs(
            output,
            lse,
            query,
            query_stride=q_stride,
            key_cache=key_cache,
            value_cache=value_cache,
            scale=self.scale,
            window=self.sliding_window or EVERYTHING,
        )
        attend(inputs, plan_for(key_cache, metadata, self.sliding_window))
        return output.reshape(len(qkv), keys)

    def _quantized_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        caches: QuantizedKVCache,
        metadata: AttentionMetadata,
    ) -> np.ndarray:
        """Attention with K and V in 8 bits: torch rounds them, so that it is the backend's own."""
        output = self.backend.forward(
            query,
            key,
            value,
            kv_cache=caches,
            metadata=metadata,
            scale=float(self.scale),
            sliding_window=self.sliding_window,
        )
        return as_numpy(output).reshape(len(query), -1)

    def _heads(self, numbers: np.ndarray, stride: int, size: tuple[int, int]) -> torch.Tensor:
        """``[num_tokens, num_heads, head_dim]``: what ``_part`` has returned, as torch has it."""
        dtype = torch.float32 if numbers.dtype == np.float32 else torch.bfloat16
        strides = stride, self.head_dim, 1
        return as_tensor(numbers, dtype).as_strided((*size, self.head_dim), strides)

    def _part(
        self, qkv: np.ndarray, begin: int, end: int, norm: Norm | None = None
    ) -> tuple[np.ndarray, int]:
        """Some columns, as ``compiled.flat`` has a view; a copy, if their heads have a norm."""
        if norm is None:
            return qkv.reshape(-1)[begin:], qkv.shape[1]
        heads = np.ascontiguousarray(qkv[:, begin:end]).reshape(-1, self.head_dim)
        return norm(heads).reshape(-1), end - begin


def is_known(layer: nn.Module) -> bool:
    """True for a layer like Llama's or Qwen's, all of whose parts are as they were made."""
    if not _is_plain(layer, DecoderLayer):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if not (_is_plain(attention, Attention) and _is_plain(mlp, GatedMLP)):
        return False
    head_norms = attention.q_norm, attention.k_norm
    return (
        _is_plain(layer.input_layernorm, RMSNorm)
        and _is_plain(layer.post_attention_layernorm, RMSNorm)
        and all(_is_plain(n, RMSNorm) or _is_plain(n, nn.Identity) for n in head_norms)
        and _is_plain(attention.qkv_proj, QKVParallelLinear)
        and _is_plain(attention.o_proj, RowParallelLinear)
        and _is_plain(mlp.gate_up_proj, MergedColumnParallelLinear)
        and _is_plain(mlp.down_proj, RowParallelLinear)
        and mlp.act_and_mul is ops.silu_and_mul
        and attention.rotary_embedding is ops.rotary_embedding
    )


def _is_plain(module: nn.Module, kind: type[Kind]) -> TypeGuard[Kind]:
    """True if a module computes as its class does: neither a subclass nor a user says otherwise."""
    as_made = "forward" not in vars(module) and type(module).forward is kind.forward
    return isinstance(module, kind) and as_made


def _norm(module: nn.Module) -> Norm:
    assert isinstance(module, RMSNorm), "it is known"
    weight = as_numpy(module.weight)
    eps = np.float32(module.eps)

    def norm(x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        output = np.empty_like(x)
        if residual is None:
            rms_norm_loop(x.size, output, x, weight, eps)
        else:
            add_rms_norm_loop(x.size, output, residual, x, weight, eps)
        return output

    return norm


def _head_norm(module: nn.Module) -> Norm | None:
    return _norm(module) if isinstance(module, RMSNorm) else None


def _product(layer: Linear, dtype: torch.dtype) -> ArrayProduct:
    """A linear layer's ``forward``: with the adapters of some rows, and other ranks' parts."""
    method = layer.quant_method
    if isinstance(method, LoRALinearMethod) and dtype == torch.float32:
        product = add_adapters_to(method.base.array_product(layer, dtype), method)
    else:
        product = method.array_product(layer, dtype)
    if isinstance(layer, RowParallelLinear) and layer.group.size > 1:
        return _sum_of(product, layer.group, dtype)
    return product


def _sum_of(product: ArrayProduct, group: Group, dtype: torch.dtype) -> ArrayProduct:
    """The sum of all ranks' products."""
    return lambda x: as_numpy(group.all_reduce(as_tensor(product(x), dtype)))
