"""ended_plans: which plan has ended in which step of a run, where several were in flight."""

from __future__ import annotations

from collections import deque

from minivllm.trace import Trace
from minivllm.trace.records import OWN_PLAN, Finished, Sampled, Scheduled, StepEnded, StepPlanned
from minivllm.xray.recorded_steps import RecordedStep, recorded_steps


def ended_plans(trace: Trace) -> dict[int, int | None]:
    """By the number of each step, that of the step whose plan ended in it; None: none did.

    Files of older tracers do not say. There a plan is found by its tokens.

    Raises:
        ValueError: for tokens of no plan in flight.
    """
    ends = list(trace.of(StepEnded))
    told = {r.step: r.step if r.plan == OWN_PLAN else r.plan for r in ends}
    if any(r.plan != OWN_PLAN for r in ends):
        return told
    return _found_by_tokens(trace) if _has_late_tokens(trace) else told


def makes_plan(step: RecordedStep) -> bool:
    """False for a step that has only ended an earlier one's plan."""
    return not isinstance(step.records[1], StepPlanned)


def _has_late_tokens(trace: Trace) -> bool:
    """True if a plan's token is missing in its own step, though its sequence has not ended."""
    for step in recorded_steps(trace):
        alive = _sampling(step) - {r.seq_id for r in step.records if isinstance(r, Finished)}
        if alive - {r.seq_id for r in step.records if isinstance(r, Sampled)}:
            return True
    return False


def _found_by_tokens(trace: Trace) -> dict[int, int | None]:
    in_flight: deque[tuple[int, set[str]]] = deque()  # step, and who gets a token
    over: set[str] = set()
    found: dict[int, int | None] = {}
    for step in recorded_steps(trace):
        over |= {r.seq_id for r in (*step.before, *step.records) if isinstance(r, Finished)}
        if makes_plan(step):
            in_flight.append((step.number, _sampling(step)))
        sampled = {r.seq_id for r in step.records if isinstance(r, Sampled)}
        # without a token ends what has none: a chunk of a prompt, or sequences that are over
        is_due = len(in_flight) > 1 or not makes_plan(step)
        if not sampled and not (in_flight and is_due and in_flight[0][1] <= over):
            found[step.number] = None
            continue
        if not (in_flight and sampled <= in_flight[0][1]):
            raise ValueError(
                f"in step {step.number} tokens come of no plan in flight; record the run again "
                "with this tracer, which says whose they are."
            )
        found[step.number] = in_flight.popleft()[0]
    return found


def _sampling(step: RecordedStep) -> set[str]:
    return {r.seq_id for r in step.records if isinstance(r, Scheduled) and r.samples}
