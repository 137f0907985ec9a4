"""Tensor helpers: from Python's numbers, memory shared with arrays, zeros, best tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch


def best_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy choice: each row's largest logit and its token, the first of equals: ``[n]`` each.

    On a CPU numpy does it: it compares 16 numbers at once, torch one.
    """
    if logits.is_cpu:
        rows = logits.numpy()
        token_ids = rows.argmax(axis=-1)
        best = rows[np.arange(len(rows)), token_ids]
        return torch.from_numpy(best), torch.from_numpy(token_ids)
    token_ids = logits.argmax(dim=-1)
    return logits.gather(-1, token_ids[:, None])[:, 0], token_ids


def make_tensor(values: Sequence | np.ndarray, dtype: str, device: torch.device) -> torch.Tensor:
    """Make a tensor of Python numbers.

    A GPU copies while the CPU goes on, which it can do only out of *pinned* memory: pages that the
    system promises not to move. Nothing here waits for the GPU.

    Args:
        values: numbers, or rows of them, of equal length.
        dtype: by name, as in ``"int64"``.
        device: where the tensor is wanted.
    """
    tensor = torch.from_numpy(np.array(values, dtype))  # twice as quick as torch.tensor on a list
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's memory as an array; floats that numba lacks as their bits."""
    dtype = tensor.dtype
    if dtype == torch.float32:
        return tensor.numpy()
    if dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    elif dtype == torch.float16:
        tensor = tensor.view(torch.int16)
    elif dtype == torch.float8_e4m3fn:
        tensor = tensor.view(torch.uint8)
    elif dtype == torch.float8_e5m2:
        tensor = tensor.view(torch.bool)  # the third of numpy's types of one byte
    return tensor.numpy()


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Return an array's memory as a tensor of this dtype: the inverse of ``as_numpy``."""
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


_ALIGNMENT = 64  # bytes of a cache line, as torch aligns its own memory on a CPU


def make_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make a tensor of zeros; on a CPU only pages that are written take memory.

    (``torch.zeros`` writes all of them; numpy asks the system for pages that are zero.)
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = prod(shape) * dtype.itemsize
    memory = torch.from_numpy(np.zeros(num_bytes + _ALIGNMENT, np.uint8))
    start = -memory.data_ptr() % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).view(shape)
