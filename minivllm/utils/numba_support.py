"""Checks that numba can be used. Nothing in this file imports it."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

OLDEST = (0, 67)
# Earlier ones turn on nested OpenMP regions for the whole process: in each thread of torch's
# attention MKL then starts threads of its own, and it takes 100 times as long.


def numba_obstacle() -> str | None:
    """Why numba cannot be used, as the end of "numba is ..."; None if it can."""
    if find_spec("numba") is None:
        return "not installed"
    if numbers(version("numba")) < OLDEST:
        return "too old"
    return None


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
