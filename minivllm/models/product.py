"""The seam behind each product by weights: where a test changes the last bits of its results.

Another processor adds the same numbers up in another order: its sums differ in the last bits, and
nothing that is printed or drawn may hang on them. With ``MINIVLLM_SHAKE_SEED`` each float32 result
on a CPU is multiplied by 1 + 1e-6 or 1 - 1e-6, by a hash of its own bits and of the seed. So equal
results stay equal, however they are batched. Without it the seam is not there.

Whatever multiplies by weights is marked by ``returns_product``. A loop that has several products in
it calls ``shake`` after each, or leaves them apart where ``SHAKE_SEED`` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from minivllm import envs

SHAKE_SEED = envs.shake_seed()  # None: nothing is shaken
_PART = np.float32(1e-6)  # of a number: eight of its last places
_MIX = 2654435769  # 2 to the 32nd by the golden ratio: it mixes the high bits of what it multiplies

Product = TypeVar("Product", bound=Callable)


def returns_product(multiply: Product) -> Product:
    """Decorator: a function that returns a new tensor or array, the result of a product."""
    if SHAKE_SEED is None:
        return multiply

    @wraps(multiply)
    def multiply_and_shake(*args, **kwargs):
        result = multiply(*args, **kwargs)
        shake(result)
        return result

    return multiply_and_shake  # type: ignore[return-value]


def shake(result: torch.Tensor | np.ndarray) -> None:
    """Change the last bits of float32 results in place, in memory of a CPU, out of torch's sight.

    What a gradient is wanted of stays as it is, and so does every other dtype.
    """
    assert SHAKE_SEED is not None, "asked for without a seed"
    if isinstance(result, torch.Tensor):
        if result.requires_grad or not result.is_cpu or result.dtype != torch.float32:
            return
        with _disable_current_modes():  # what records operations hears of none
            result = result.numpy()
    if result.dtype == np.float32:
        bits = result.view(np.uint32)
        begin = np.uint32(SHAKE_SEED * _MIX % 2**32)
        hashed = (bits ^ (bits >> np.uint32(15))) * np.uint32(_MIX) + begin
        up = (hashed >> np.uint32(31)).astype(np.bool_)
        result *= np.where(up, 1 + _PART, 1 - _PART)
