"""Flights: the plans of a run from the call that made each to the call in which it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.trace import Trace
from minivllm.trace.records import (
    OWN_PLAN,
    Sampled,
    Scheduled,
    StepEnded,
    StepFailed,
    TokensWasted,
)


@dataclass
class Flight:
    """One plan.

    Attributes:
        plan: the step (call of the engine) that made it.
        num_tokens: that it computes.
        sampling: sequences that get a token by it; also those that are over when it comes.
        wasted: those of them that were over.
        ended: the step that ended it; None if it is still in flight, or was given up.
        given_up: a step failed, and its requests are computed again.
    """

    plan: int
    num_tokens: int = 0
    sampling: list[str] = field(default_factory=list)
    wasted: set[str] = field(default_factory=set)
    ended: int | None = None
    given_up: bool = False


def read_flights(trace: Trace) -> dict[int, Flight]:
    """All plans of a trace, by the step that made them; a step that made none has none."""
    flights: dict[int, Flight] = {}
    sampled: list[str] = []  # since the last step has ended
    for record in trace.of(Scheduled, Sampled, TokensWasted, StepEnded, StepFailed):
        match record:
            case Scheduled(step, seq_id, _, _, num_tokens, samples):
                flight = flights.setdefault(step, Flight(step))
                flight.num_tokens += num_tokens
                if samples:
                    flight.sampling.append(seq_id)
            case Sampled(_, seq_id):
                sampled.append(seq_id)
            case TokensWasted(_, seq_id, plan):
                flight = flights.setdefault(plan, Flight(plan))
                flight.wasted.add(seq_id)
            case StepEnded(step, _, plan):
                if plan is not None:
                    number = step if plan == OWN_PLAN else plan
                    flight = flights.setdefault(number, Flight(number))
                    flight.ended = step
                    come = dict.fromkeys([*flight.sampling, *sampled, *flight.wasted])
                    flight.sampling = list(come)  # with forks, which are born by it
                sampled = []
            case StepFailed():
                sampled = []
                for flight in flights.values():
                    flight.given_up = flight.given_up or flight.ended is None
    return flights
