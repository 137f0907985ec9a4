"""Checks of the numbers that simulated time is made of: a wrong one would stop it, or turn it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minivllm.utils.validation import check, is_int, is_number


def check_rates(owner: Any, where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for a rate by which cannot be divided; an infinite one takes no time."""
    for name in names:
        value = getattr(owner, name)
        is_infinite = isinstance(value, float) and value == math.inf
        ok = is_infinite or (is_number(value) and value > 0)
        check(ok, f"{where}.{name}", value, "a number above 0, or inf")


def check_sizes(owner: Any, where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for a size that is zero, negative or not finite."""
    for name in names:
        value = getattr(owner, name)
        check(is_number(value) and value > 0, f"{where}.{name}", value, "a number above 0")


def check_shares(owner: Any, where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for what is no share of a peak."""
    for name in names:
        value = getattr(owner, name)
        allowed = "a number above 0 and at most 1"
        check(is_number(value) and 0 < value <= 1, f"{where}.{name}", value, allowed)


def check_at_least_zero(owner: Any, where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for seconds, or an exponent, that are negative or not finite."""
    for name in names:
        value = getattr(owner, name)
        check(is_number(value) and value >= 0, f"{where}.{name}", value, "a number of at least 0")


def check_counts(owner: Any, where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for what cannot be counted: no integer, or one below 1."""
    for name in names:
        value = getattr(owner, name)
        check(is_int(value, 1), f"{where}.{name}", value, "an integer of at least 1")
