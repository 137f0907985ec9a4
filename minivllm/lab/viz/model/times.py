"""Times: when each step began and ended, in seconds or counted in steps; and how long each took."""

from __future__ import annotations

from functools import cached_property

from minivllm.lab.sim.cost import CostModel, attended_pairs
from minivllm.lab.viz.model.flights import read_flights
from minivllm.lab.viz.model.timeline_model import History
from minivllm.trace import Trace
from minivllm.trace.records import RankWorked, RequestAdded, StepEnded, StepPlanned, StepStarted
from minivllm.utils.validation import check

CLOCKS = ("steps", "seconds")


class Times:
    """Start and end of each step of a trace, and of its plan's computation, by one of two clocks.

    By "steps", step 3 lasts from 3 to 4, and its forward pass is all of it: the same on every
    machine. By "seconds", as measured since the trace began (or simulated, if the trace was given
    a simulation's clock).

    A plan that ends in a later step than its own is computed in that one, by steps; by seconds when
    the devices say, and else from its making to its end.

    Raises:
        ValueError: for another clock, or a trace without steps.
    """

    def __init__(self, trace: Trace, clock: str):
        check(clock in CLOCKS, "clock", clock, "'steps' or 'seconds'")
        check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
        self.clock = clock
        self._trace = trace
        self._started = [r.time for r in trace.of(StepStarted)]
        self._planned = [r.time for r in trace.of(StepPlanned)]
        self._ended = [r.time for r in trace.of(StepEnded)]
        self._worked: dict[int, tuple[float, float]] = {}  # by plan, of all ranks together
        for work in trace.of(RankWorked):
            start, end = self._worked.get(work.plan, (work.start, work.end))
            self._worked[work.plan] = min(start, work.start), max(end, work.end)

    @cached_property
    def _late(self) -> dict[int, int]:
        """Step in which a plan ended, of those that ended in a later one than their own."""
        return {
            flight.plan: flight.ended
            for flight in read_flights(self._trace).values()
            if flight.ended is not None and flight.ended != flight.plan
        }

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

    @property
    def is_overlapped(self) -> bool:
        """True if plans were made while others were computed."""
        return bool(self._late)

    def computed(self, plan: int) -> tuple[float, float]:
        """Start and end of a plan's computation."""
        if plan not in self._late:
            return self.planned(plan), self.end(plan)
        if self.clock == "steps":
            return self._late[plan], self._late[plan] + 1
        return self._worked.get(plan, (self.planned(plan), self.end(self._late[plan])))

    def came(self, plan: int) -> float | None:
        """Time at which a plan's device was done, by its own record; None if there is none."""
        return None if plan not in self._worked else self._worked[plan][1]

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
