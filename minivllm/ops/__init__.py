"""Elementwise operations between the matrix products, and the choice of their implementation.

``native`` has each in a line or two of torch: the definition, and what runs on a GPU. ``fused_cpu``
has each as one loop compiled by numba, for a CPU: torch needs several calls and as many passes over
the numbers, which for a batch of decodes cost more than their arithmetic. Tests hold every fused
operation to its native PyTorch version. (vLLM: vllm/_custom_ops.py)
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch

from minivllm.logger import init_logger
from minivllm.ops import native
from minivllm.ops.numba_support import numba_obstacle

logger = init_logger(__name__)

FUSED_DTYPES = (torch.float32, torch.bfloat16)


@cache
def cpu_ops() -> ModuleType:
    """The implementation for a CPU: fused, or native where numba cannot be used."""
    if (obstacle := numba_obstacle()) is not None:
        logger.info("Small operations run in torch: numba is %s.", obstacle)
        return native
    from minivllm.ops import fused_cpu

    return fused_cpu


def _ops(x: torch.Tensor) -> ModuleType:
    return cpu_ops() if x.is_cpu and x.dtype in FUSED_DTYPES else native


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension, the mean taken in float32."""
    return _ops(x).rms_norm(x, weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add ``x`` to ``residual``, in place there, and return ``rms_norm`` of the sum."""
    return _ops(x).fused_add_rms_norm(x, residual, weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``[num_tokens, 2 * size]``, the gate's numbers before the other's."""
    return _ops(x).silu_and_mul(x)


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn each pair ``(x[i], x[i + head_dim / 2])`` of ``[num_tokens, heads, head_dim]``.

    Every number is multiplied with the cosine, and gets its partner, half a head away, times the
    sine; the first of a pair has a minus there. ``cos_sin`` is ``[num_tokens, 2, head_dim]``.
    The answers may be in the memory of query and key. (vLLM: rotary_embedding, vllm/_custom_ops.py)
    """
    return _ops(query).rotary_embedding(query, key, cos_sin)


def merge_attn_states(
    output: torch.Tensor,
    lse: torch.Tensor,
    rows: torch.Tensor | slice,
    other: torch.Tensor,
    other_lse: torch.Tensor,
) -> None:
    """Put attention to two parts of the keys together, in place, for some rows.

    (vLLM: ``merge_attn_states``, vllm/v1/attention/ops/triton_merge_attn_states.py)

    Args:
        output: of one part, ``[num_tokens, num_heads, head_dim]``.
        lse: of that part, float32 ``[num_tokens, num_heads]``.
        rows: which rows, int64 ``[n]`` or a slice.
        other, other_lse: these rows' attention to the other part.
    """
    _ops(other).merge_attn_states(output, lse, rows, other, other_lse)
