"""Checks of the labs on serving: the slot of a stream, and a quantile from buckets."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from random import Random

from minivllm.lab.exercises.labs.function_checks import WrongEntry, call
from minivllm.lab.exercises.labs.run import Fault


def check_join(function: Callable, seed: int) -> str:
    """Streams that are read late: every token once, in order, and the reason at the end."""
    rng, streams = Random(f"lab join {seed}"), 0
    for delta in (True, False):
        for _ in range(40):
            _check_stream(function, rng, delta)
            streams += 1
    error = ValueError("the engine has stopped")
    for pending in (None, _output("a", [1]), error):
        got = call(function, pending, error, True)
        if got is not error:
            raise WrongEntry(f"when {pending!r} waits and an error comes, {got!r} is next", "it")
    return f"{streams} streams arrive whole, however late they are read"


def _output(text: str, token_ids: list[int], finish_reason: str | None = None) -> dict:
    return {"text": text, "token_ids": token_ids, "finish_reason": finish_reason}


def _check_stream(function: Callable, rng: Random, delta: bool) -> None:
    letters = [rng.choice("abcdefgh") for _ in range(rng.randint(1, 9))]
    pending, right, so_far = None, None, ""
    for index, letter in enumerate(letters):
        so_far += letter
        reason = "length" if index == len(letters) - 1 else None
        text = letter if delta else so_far
        output = _output(text, [ord(c) for c in text], reason)
        kept = deepcopy((pending, output))
        got = call(function, pending, output, delta)
        if (pending, output) != kept:
            raise Fault(f"{kept[0]} waits and {kept[1]} comes: one of them has been changed")
        text = (right["text"] if delta and right else "") + text
        right = _output(text, [ord(c) for c in text], reason)
        if got != right:
            kind = "deltas" if delta else "outputs so far"
            waits = "nothing waits" if pending is None else f"{pending} waits"
            raise WrongEntry(f"{kind}: {waits} and {output} comes; {got!r} is next", f"{right}")
        pending = got
        if rng.random() < 0.4:  # the reader takes it
            pending = right = None


def check_quantile(function: Callable, seed: int) -> str:
    """Buckets of all kinds, empty ones and the last one included."""
    rng, cases = Random(f"lab quantile {seed}"), 0
    worlds = [
        ({"1.0": 0, "+Inf": 0}, 0.5),
        ({"1.0": 4, "2.0": 4, "+Inf": 4}, 1.0),
        ({"0.5": 0, "1.0": 3, "+Inf": 10}, 0.9),
        ({"0.1": 2, "0.25": 2, "0.5": 6, "+Inf": 6}, 0.5),
    ]
    for _ in range(60):
        total, filled = 0, {}
        for bound in (0.1, 0.25, 0.5, 1.0, 2.5):
            total += rng.choice([0, 0, 1, 3, 10])
            filled[str(bound)] = total
        filled["+Inf"] = total + rng.choice([0, 0, 2])
        worlds.append((filled, rng.choice([0.01, 0.5, 0.9, 0.99, 1.0])))
    for filled, q in worlds:
        got, right = call(function, dict(filled), q), _quantile(filled, q)
        same = isinstance(got, (int, float)) and (
            math.isclose(got, right, abs_tol=1e-9) or (math.isnan(got) and math.isnan(right))
        )
        if not same:
            raise WrongEntry(f"of {filled} the {q} quantile is not {got!r}", f"{right:.4g}")
        cases += 1
    return f"as Prometheus says in {cases} histograms, empty ones and unbounded tails included"


def _quantile(filled: dict[str, int], q: float) -> float:
    """By the definition: go through observations that are spread evenly in their buckets."""
    if not filled["+Inf"]:
        return math.nan
    rank, bounds = q * filled["+Inf"], [float(bound) for bound in filled]
    index = next(i for i, count in enumerate(filled.values()) if count >= rank)
    if math.isinf(bounds[index]):
        return bounds[index - 1]
    low = bounds[index - 1] if index else 0.0
    below = list(filled.values())[index - 1] if index else 0
    inside = list(filled.values())[index] - below
    return low + (bounds[index] - low) * (rank - below) / inside
