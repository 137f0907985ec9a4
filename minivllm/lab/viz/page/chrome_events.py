"""Events of the JSON Trace Event Format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

from typing import Any

FIRST_TRACK = 10  # a thread with its process's id would be taken for its main thread
MICROSECONDS = {"seconds": 1e6, "steps": 1e3}  # a step is shown as a millisecond

Event = dict[str, Any]


def make_event(phase: str, pid: int, tid: int, name: str, at: float, **more) -> Event:
    """An event of one moment, in microseconds, on a track of a process."""
    return {"name": name, "ph": phase, "pid": pid, "tid": tid, "ts": round(at, 3), **more}


def make_slice(
    pid: int, tid: int, name: str, start: float, end: float, args: Event | None = None
) -> Event:
    """A slice of a track from start to end, in microseconds, and ``args`` to be shown with it."""
    event = make_event("X", pid, tid, name, start)
    event["dur"] = round(round(end, 3) - event["ts"], 3)
    return event if args is None else event | {"args": args}


def metadata(pid: int, tid: int, what: str, **args) -> Event:
    """Name or place of a process or a track."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}
