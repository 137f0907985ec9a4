"""RankWork: one rank's report on its part in a step, before it is in the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Operation(NamedTuple):
    """One rank's part in an operation of a group; see ``trace.records.Communicated``."""

    start: float  # seconds of ``time.time()``
    end: float
    group: str
    op: str
    num_bytes: int


@dataclass(frozen=True)
class RankWork:
    """One rank's part in a step, for the trace."""

    rank: int
    start: float  # seconds of ``time.time()``, which machines have in common
    end: float
    operations: list[Operation]
