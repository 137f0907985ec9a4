"""Labs of notebook 10, first kernels: a copy, an addition behind a mask."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.kernel_runs import NAN, check_kernel, require_triton
from minivllm.course.grading.function_lab import FunctionLab

SOLUTIONS = "minivllm.course.ch10.kernel_ladder"
SIZES = (1, 7, 8, 9, 30)
BLOCK = 8


def my_copy(out, x, n, BLOCK):
    """Copy n numbers: put @triton.jit above this function, and write BLOCK: tl.constexpr.

    Specification: out[:n] = x[:n]

    The grid has a program for every BLOCK numbers, the last one perhaps not full. out and x are
    pointers. You have tl.program_id(0), tl.arange(0, BLOCK), tl.load(pointers, mask=...) and
    tl.store(pointers, values, mask=...). What is behind n in x is NaN, and in out not yours.
    """
    raise NotImplementedError


def my_masked_add(out, x, y, present, n, BLOCK):
    """Add y to x where it is present: put @triton.jit above, and write BLOCK: tl.constexpr.

    Specification: out[:n] = x[:n] + torch.where(present[:n] != 0, y[:n], 0)

    present is int32, 0 or 1. Where it is 0, y is NaN: 0 * NaN is NaN, so such a number must not be
    loaded. tl.load(pointers, mask=..., other=0.0) gives 0.0 where the mask is False.
    """
    raise NotImplementedError


def check_copy(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(n: int):
        x = torch.full((40,), NAN)
        x[:n] = torch.randn(n, generator=generator)

        def launch(kernel):
            out = torch.full((40,), NAN)
            kernel[(-(-n // BLOCK),)](out, x, n, BLOCK=BLOCK)
            return out

        return f"{n} numbers", launch, x

    return f"equal to torch for {check_kernel(function, map(run, SIZES))} lengths"


def check_masked_add(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(n: int):
        x, y = torch.full((2, 40), NAN)
        present = torch.ones(40, dtype=torch.int32)
        present[:n] = torch.randint(2, (n,), generator=generator)
        x[:n] = torch.randn(n, generator=generator)
        y[:n] = torch.where(present[:n] != 0, torch.randn(n, generator=generator), NAN)
        right = torch.full((40,), NAN)
        right[:n] = x[:n] + torch.where(present[:n] != 0, y[:n], 0)

        def launch(kernel):
            out = torch.full((40,), NAN)
            kernel[(-(-n // BLOCK),)](out, x, y, present, n, BLOCK=BLOCK)
            return out

        return f"{n} numbers", launch, right

    return f"equal to torch for {check_kernel(function, map(run, SIZES))} lengths"


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
