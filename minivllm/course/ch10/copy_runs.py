"""Runs of the first two kernels of notebook 10: what they are given, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from minivllm.course.ch10.kernel_memory import Array, Program
from minivllm.course.ch10.kernel_runs import KernelRun

SIZES = (9, 1, 7, 8, 30)
BLOCK = 8
SPACE = 40
NAN = float("nan")
BEHIND = (NAN, 5.0, NAN, 5.0, NAN)  # what is behind n, and around each array
BEFORE = 7.0  # what is in ``out`` before anything is stored


def copy_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for n, behind in zip(SIZES, BEHIND, strict=True):
        x = _numbers(n, generator, behind)
        arrays = {"out": _output(n, behind), "x": _array(x, n, behind)}
        numbers = {"n": n, "BLOCK": BLOCK}
        yield KernelRun(f"n = {n}", _grid(n), arrays, numbers, right=x, drawn="x")


def masked_add_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for n, behind in zip(SIZES, BEHIND, strict=True):
        x = _numbers(n, generator, behind)
        present = torch.ones(SPACE, dtype=torch.int32)
        present[:n] = torch.randint(2, (n,), generator=generator)
        y = torch.where(present != 0, _numbers(n, generator, behind), NAN)
        taken = torch.where(present != 0, y, 0)
        arrays = {
            "out": _output(n, behind), "x": _array(x, n, behind),
            "y": _present_array(y, present, n, behind), "present": _array(present, n, 1),
        }  # fmt: skip
        yield KernelRun(
            f"n = {n}",
            _grid(n),
            arrays,
            numbers={"n": n, "BLOCK": BLOCK},
            right=x + taken,
            drawn="y",
            mistakes=partial(_mistakes, x, taken, present != 0),
        )


def _mistakes(x: torch.Tensor, taken: torch.Tensor, present: torch.Tensor) -> dict:
    return {
        "y is not added": x,
        "x is not added": taken,
        "x is added only where present is not 0": torch.where(present, x + taken, 0),
        "y is subtracted": x - taken,
        "x and y are multiplied": x * taken,
    }


def _grid(n: int) -> tuple[int]:
    return (-(-n // BLOCK),)


def _numbers(n: int, generator: torch.Generator, behind: float) -> torch.Tensor:
    numbers = torch.full((SPACE,), behind)
    numbers[:n] = torch.randn(n, generator=generator)
    return numbers


def _below(n: int) -> torch.Tensor:
    """True for the places that exist."""
    return torch.arange(SPACE) < n


def _places_of(program: Program, n: int) -> torch.Tensor:
    """True for the places of one program."""
    return _below(n) & (torch.arange(SPACE) // BLOCK == program[0])


def _array(values: torch.Tensor, n: int, behind: float, is_output: bool = False) -> Array:
    """An array in which n numbers are there, and each program has BLOCK of them."""
    return Array(
        values,
        _below(n),
        why=lambda index: f"n is {n}",
        own=lambda program: _places_of(program, n),
        is_output=is_output,
        margin=behind,
    )


def _present_array(y: torch.Tensor, present: torch.Tensor, n: int, behind: float) -> Array:
    """An array in which only those numbers are there that are present."""

    def why(index: tuple[int, ...]) -> str:
        return f"present[{index[0]}] is 0" if 0 <= index[0] < n else f"n is {n}"

    return Array(
        y,
        _below(n) & (present != 0),
        why=why,
        own=lambda program: _places_of(program, n) & (present != 0),
        margin=behind,
    )


def _output(n: int, behind: float) -> Array:
    return _array(torch.full((SPACE,), BEFORE), n, behind, is_output=True)
