"""Times: when each step began and ended, in seconds or counted in steps."""

from __future__ import annotations

from minivllm.records import RequestAdded, StepEnded, StepPlanned, StepStarted
from minivllm.trace import Trace
from minivllm.validation import check

CLOCKS = ("steps", "seconds")


class Times:
    """The moments of a trace.

    By "steps", step 3 lasts from 3 to 4, and its forward pass is all of it: the same on every
    machine. By "seconds", as measured since the trace began (or simulated, if the trace was given
    a simulation's clock).

    Raises:
        ValueError: for another clock, or a trace without steps.
    """

    def __init__(self, trace: Trace, clock: str):
        check(clock in CLOCKS, "clock", clock, "'steps' or 'seconds'")
        check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
        self.clock = clock
        self._started = [r.time for r in trace.of(StepStarted)]
        self._planned = [r.time for r in trace.of(StepPlanned)]
        self._ended = [r.time for r in trace.of(StepEnded)]

    def start(self, step: int) -> float:
        return step if self.clock == "steps" else self._started[step]

    def planned(self, step: int) -> float:
        """When the forward pass began."""
        return step if self.clock == "steps" else self._planned[step]

    def end(self, step: int) -> float:
        """When the tokens of a step were there; of step -1, the beginning."""
        if step < 0:
            return 0.0
        return step + 1 if self.clock == "steps" else self._ended[step]

    def arrival(self, record: RequestAdded) -> float:
        """When a request joined the queue; by steps, at the end of the step before."""
        return self.end(record.step) if self.clock == "steps" else record.time
