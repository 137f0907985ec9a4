"""Times: when each step began and ended, in seconds or counted in steps; and how long each took."""

from __future__ import annotations

from minivllm.lab.sim.cost import CostModel, attended_pairs
from minivllm.lab.viz.model.timeline_model import History
from minivllm.trace import Trace
from minivllm.trace.records import RequestAdded, StepEnded, StepPlanned, StepStarted
from minivllm.utils.validation import check

CLOCKS = ("steps", "seconds")


class Times:
    """Start and end of each step of a trace, by one of two clocks.

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
        """Time at which the forward pass began."""
        return step if self.clock == "steps" else self._planned[step]

    def end(self, step: int) -> float:
        """Time at which the tokens of a step were there; of step -1, the beginning."""
        if step < 0:
            return 0.0
        return step + 1 if self.clock == "steps" else self._ended[step]

    def arrival(self, record: RequestAdded) -> float:
        """Time at which a request joined the queue; by steps, at the end of the step before."""
        return self.end(record.step) if self.clock == "steps" else record.time


def step_milliseconds(trace: Trace, history: History, clock: str | CostModel) -> list[float] | None:
    """Milliseconds of each step; None if steps are only counted.

    Args:
        trace: what the engine wrote.
        history: of the same trace.
        clock: "steps" only counts; "seconds" are the trace's own; a cost model says how long such a
            step takes on its hardware.

    Raises:
        ValueError: for another clock.
    """
    if isinstance(clock, CostModel):
        return [_modelled(history, step, clock) for step in range(trace.num_steps)]
    check(clock in CLOCKS, "clock", clock, "'steps', 'seconds' or a CostModel")
    if clock == "steps":
        return None
    times = Times(trace, clock)
    return [1000 * (times.end(step) - times.start(step)) for step in range(trace.num_steps)]


def _modelled(history: History, step: int, cost: CostModel) -> float:
    cells = [row[step] for row in history.rows.values() if step in row]
    computed = [(cell.start, cell.num_tokens) for cell in cells if cell.num_tokens]
    num_tokens = sum(new for _, new in computed)
    num_attended = sum(attended_pairs(start, new) for start, new in computed)
    num_kv = sum(start + 2 * new for start, new in computed)
    return 1000 * cost.step_seconds(num_tokens, num_attended, num_kv)
