"""Labs of notebook 10, first kernels: a copy, an addition behind a mask."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.needs_triton import require_triton
from minivllm.course.grading.function_lab import FunctionLab, Passed

SOLUTIONS = "minivllm.course.ch10.kernel_ladder"


def my_copy(out, x, n, BLOCK):
    """Copy n numbers: put @triton.jit above this function, and write BLOCK: tl.constexpr.

    Specification: out[:n] = x[:n]

    The grid has a program for every BLOCK numbers, the last one perhaps not full. out and x are
    pointers. You have tl.program_id(0), tl.arange(0, BLOCK), tl.load(pointers, mask=...) and
    tl.store(pointers, values, mask=...). What is behind n is not yours, in x and in out. Each
    program has places of its own, and what a mask leaves out of a load may be anything.
    """
    raise NotImplementedError


def my_masked_add(out, x, y, present, n, BLOCK):
    """Add y to x where it is present: put @triton.jit above, and write BLOCK: tl.constexpr.

    Specification: out[:n] = x[:n] + torch.where(present[:n] != 0, y[:n], 0)

    present is int32, 0 or 1. Where it is 0, y is NaN: 0 * NaN is NaN, so such a number must not be
    loaded. tl.load(pointers, mask=..., other=0.0) gives 0.0 where the mask is False; without
    other= it gives anything.
    """
    raise NotImplementedError


def check_copy(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.copy_runs import copy_runs
    from minivllm.course.ch10.kernel_runs import check_kernel

    return check_kernel(function, my_copy, copy_runs(seed), "lengths")


def check_masked_add(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.copy_runs import masked_add_runs
    from minivllm.course.ch10.kernel_runs import check_kernel

    return check_kernel(function, my_masked_add, masked_add_runs(seed), "lengths")


COPY = FunctionLab(
    "10", "Write a kernel that copies.",
    "Program i has the places i * BLOCK to (i + 1) * BLOCK - 1; load and store behind place < n.",
    difficulty=1, minutes=10, stub=my_copy, check=check_copy,
    solution_module=SOLUTIONS,
)  # fmt: skip
MASKED_ADD = FunctionLab(
    "10", "Write an addition behind a mask.",
    "Two masks: a place exists if it is below n; y is read only where present is not 0.",
    difficulty=2, minutes=10, stub=my_masked_add, check=check_masked_add,
    solution_module=SOLUTIONS,
)  # fmt: skip
