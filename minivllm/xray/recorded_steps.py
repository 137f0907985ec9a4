"""recorded_steps: the records of a run, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minivllm.trace import Trace
from minivllm.trace.records import Record, StepEnded, StepStarted


class RecordedStep(NamedTuple):
    """A step, and what came between it and the one before."""

    number: int
    before: list[Record]
    records: list[Record]


def recorded_steps(trace: Trace) -> Iterator[RecordedStep]:
    """Yield the steps of a trace that have ended."""
    before: list[Record] = []
    inside: list[Record] | None = None
    for record in trace.records:
        if isinstance(record, StepStarted):
            inside = []
        (before if inside is None else inside).append(record)
        if isinstance(record, StepEnded) and inside is not None:
            yield RecordedStep(record.step, before, inside)
            before = []
            inside = None
