"""Launches: when a CPU starts kernels, and when a GPU runs them; one by one, or as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minivllm.utils.validation import check, is_number


class Launch(NamedTuple):
    """One kernel's times in µs: the CPU starts it (none within a graph), the GPU runs it."""

    cpu: tuple[float, float] | None
    gpu: tuple[float, float]


def launch_each(kernels_us: Sequence[float], launch_us: float) -> list[Launch]:
    """Start each kernel by a call of its own, without waiting for its end.

    Args:
        kernels_us: how long each kernel runs, in µs, in order.
        launch_us: how long the CPU needs to start one.

    Raises:
        ValueError: for what is no time.
    """
    _check(kernels_us, launch_us)
    launches = []
    free = 0.0
    for i, kernel in enumerate(kernels_us):
        begin = max(free, (i + 1) * launch_us)
        free = begin + kernel
        launches.append(Launch((i * launch_us, (i + 1) * launch_us), (begin, free)))
    return launches


def launch_graph(kernels_us: Sequence[float], launch_us: float) -> list[Launch]:
    """Start all kernels by one call; arguments as of ``launch_each``."""
    _check(kernels_us, launch_us)
    launches = []
    free = launch_us
    for i, kernel in enumerate(kernels_us):
        launches.append(Launch(None if i else (0.0, launch_us), (free, free + kernel)))
        free += kernel
    return launches


def _check(kernels_us: Sequence[float], launch_us: float) -> None:
    ok = len(kernels_us) > 0 and all(is_number(us) and us > 0 for us in kernels_us)
    check(ok, "kernels_us", kernels_us, "numbers above 0, at least one")
    check(is_number(launch_us) and launch_us > 0, "launch_us", launch_us, "a number above 0")
