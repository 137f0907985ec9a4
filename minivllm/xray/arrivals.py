"""Times at which a run's scheduler could have requests: later than they came to the server.

A server reads a request, makes tokens of it and hands it to the engine's process.
"""

from __future__ import annotations

from statistics import median

from minivllm.trace.records import Finished, RequestAdded, StepStarted
from minivllm.xray.format import XRay
from minivllm.xray.replay_settings import arrivals_of


def times_to_schedule(xray: XRay) -> dict[str, float]:
    """Return from when on the scheduler can plan each request of a run, in seconds, by id.

    An engine that is idle begins a step as soon as it has a request, so that step's beginning is
    the time. A busy engine looks for requests only between two steps: then it is the server's
    usual delay after the arrival, but behind the step that did not have the request yet.
    """
    found: dict[str, tuple[float, float, bool]] = {}
    to_come: list[str] = []
    delays: list[float] = []
    arrivals = arrivals_of(xray)
    unfinished: set[str] = set()
    seen = 0.0
    is_idle = True
    for record in xray.trace.records:
        match record:
            case RequestAdded():
                unfinished.add(record.request_id)
                to_come.append(record.request_id)
            case Finished():
                unfinished.discard(record.seq_id)
                is_idle = is_idle or not unfinished
            case StepStarted():
                for name in to_come:
                    found[name] = (seen, record.time, is_idle)
                    if is_idle:
                        delays.append(max(0.0, record.time - arrivals[name]))
                to_come = []
                is_idle = False
                seen = record.time
    delay = median(delays) if delays else 0.0
    return {
        name: first if was_idle else min(first, max(arrivals[name] + delay, before))
        for name, (before, first, was_idle) in found.items()
    }
