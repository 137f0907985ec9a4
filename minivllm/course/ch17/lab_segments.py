"""Lab of notebook 17: rows sorted into segments, held to batches of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_segments(slots):
    """Segments of a step's rows: those of one adapter, side by side.

    Args:
        slots: a list with the slot of each row's adapter, -1 for a row without one.

    Rows without adapter are in no segment. Segments are in the order of their slots, and rows of
    one segment in the order of the batch.

    Returns: a triple of lists. order: the rows, sorted. starts: where in it each segment begins,
        and at the end where the last one stops. present: the slot of each segment.
    """
    raise NotImplementedError


def segments(slots):
    rows = [row for row, slot in enumerate(slots) if slot >= 0]
    order = sorted(rows, key=lambda row: slots[row])  # sorted() keeps the order of equals
    starts, present = [], []
    for index, row in enumerate(order):
        if slots[row] not in present:
            present.append(slots[row])
            starts.append(index)
    return order, [*starts, len(order)], present


def check_segments(function: Callable, seed: int) -> str:
    """Batches with all slots, with a few, with one and with none."""
    rng = Random(f"lab segments {seed}")
    batches = [[-1, 2, 0, 2], [0, 0, 1], [-1], [2, 2, -1], []]
    for _ in range(80):
        known = rng.sample(range(4), rng.randint(1, 4))
        batches.append([rng.choice([-1, *known]) for _ in range(rng.randint(1, 12))])
    for slots in batches:
        _check_batch(slots, call(function, list(slots)))
    return f"{len(batches)} batches: each row with an adapter is in its segment, and in order"


def _check_batch(slots: list[int], got: Any) -> None:
    triple = isinstance(got, (tuple, list)) and len(got) == 3
    if not (triple and all(isinstance(part, (tuple, list)) for part in got)):
        raise Fault("return a triple of lists: order, starts, present")
    order, starts, present = (list(part) for part in got)
    where = f"of {slots}"
    wanted = [row for slot in range(4) for row in range(len(slots)) if slots[row] == slot]
    if order != wanted:
        raise WrongEntry(f"{where} the order is not {order}{_explain(order, slots)}", f"{wanted}")
    known = sorted({slot for slot in slots if slot >= 0})
    if present != known:
        raise WrongEntry(f"{where} the slots present are not {present}", f"{known}")
    ends = [sum(0 <= slot < limit for slot in slots) for limit in known] + [len(wanted)]
    if starts != ends:
        why = ": one more number than segments, the last is the end" if starts == ends[:-1] else ""
        raise WrongEntry(f"{where} the starts are not {starts}{why}", f"{ends}")


def _explain(order: list, slots: list[int]) -> str:
    """Return what a wrong order forgets."""
    if any(row not in range(len(slots)) for row in order):
        return ": it lists rows, by their place in the batch"
    if any(slots[row] < 0 for row in order):
        return ": a row without adapter is in no segment"
    if len(set(order)) < sum(slot >= 0 for slot in slots):
        return ": each row with an adapter is in it once"
    if [slots[row] for row in order] == sorted(slots[row] for row in order):
        return ": rows of one segment stay in the order of the batch"
    return ": segments are in the order of their slots"


LAB = FunctionLab(
    "17",
    "Write the sorting of a step's rows by adapter.",
    "Leave out the rows without adapter; then a stable sort by slot has all segments side by side.",
    difficulty=2, minutes=12, stub=my_segments, check=check_segments,
)  # fmt: skip
