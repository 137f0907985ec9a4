"""Puzzle: a small workload, a few numbers to reach, and a policy or settings that reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from minivllm.course.asking.answers import NotYet, is_whole, whole
from minivllm.course.asking.exercise import Exercise
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import sentence
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.trace.records import Finished, Preempted, RequestAdded, Sampled, Scheduled, SwappedOut


def _arrivals(trace: Trace) -> dict[str, int]:
    """The step in which each request joined the queue."""
    return {r.request_id: r.step + 1 for r in trace.of(RequestAdded)}


def mean_finish(trace: Trace) -> float:
    """Steps from arrival to the end, the mean over all requests."""
    arrived = _arrivals(trace)
    return mean(r.step + 1 - arrived[r.seq_id] for r in trace.of(Finished))


def slowest_first_token(trace: Trace) -> int:
    """Steps from arrival to the first token, of the request that waits longest for it."""
    arrived = _arrivals(trace)
    first = {}
    for record in trace.of(Sampled):
        first.setdefault(record.seq_id, record.step + 1 - arrived[record.seq_id])
    return max(first.values())


def busiest_decode_step(trace: Trace) -> int:
    """Tokens of the largest step with a decode: what one token may have to wait for."""
    totals = {}
    decodes = set()
    begun = set()
    for record in trace.of(Scheduled, Sampled):
        if isinstance(record, Sampled):
            begun.add(record.seq_id)
            continue
        totals[record.step] = totals.get(record.step, 0) + record.num_tokens
        if record.seq_id in begun:
            decodes.add(record.step)
    return max((totals[step] for step in decodes), default=0)


METRICS: dict[str, Callable[[Trace], float]] = {
    "steps": lambda trace: trace.num_steps,
    "peak_blocks": lambda trace: read_history(trace).peak_blocks,
    "computed_tokens": lambda trace: sum(r.num_tokens for r in trace.of(Scheduled)),
    "preemptions": lambda trace: sum(1 for _ in trace.of(Preempted, SwappedOut)),
    "mean_finish": mean_finish,
    "slowest_first_token": slowest_first_token,
    "busiest_decode_step": busiest_decode_step,
}


def measure(workload: dict[str, tuple], **settings: Any) -> dict[str, float]:
    """Value of each metric in a dry run of this workload."""
    trace = _serve(workload, settings)
    return {name: metric(trace) for name, metric in METRICS.items()}


def _serve(workload: dict[str, tuple], settings: dict[str, Any]) -> Trace:
    requests = [make_request(name, *spec) for name, spec in workload.items()]
    return dry_run(requests, **settings, max_steps=1000)


class Puzzle(Exercise):
    """An exercise whose answer is put into a dry run.

    Args:
        question, hint, solution: as of an exercise.
        workload: by name ``(prompt, output tokens)``, and the step of arrival if it is not 0; a
            prompt is a number of tokens or a list of token ids.
        settings: arguments of ``dry_run``; what the answer does not change stays so.
        may_set: the names that an answer may change. "policy" is one of them, or the only one.
        targets: the most that each of these ``METRICS`` may be.
        missed: by metric, what an answer that misses its target has not seen.
    """

    def __init__(
        self,
        question: str,
        hint: str,
        solution: Callable[..., Any],
        *,
        workload: dict[str, tuple],
        settings: dict[str, Any],
        may_set: tuple[str, ...],
        targets: dict[str, float],
        missed: dict[str, str],
    ):
        self.missed = missed
        given = {
            "workload": workload, "settings": settings, "may_set": may_set, "targets": targets
        }  # fmt: skip
        super().__init__(self._judge, hint, solution, question, given)

    def run(self, answer: Any = None) -> Trace:
        """The trace of the workload with this answer's policy or settings; None changes nothing.

        Raises:
            NotYet: if it is no answer, or the run fails.
        """
        chosen = {} if answer is None else self._read(answer)
        try:
            return _serve(self.given["workload"], {**self.given["settings"], **chosen})
        except Exception as error:  # a policy of the reader's own may raise anything
            raise NotYet(f"the run fails: {type(error).__name__}: {error}") from error

    def _read(self, answer: Any) -> dict[str, Any]:
        may_set = self.given["may_set"]
        if isinstance(answer, type) and issubclass(answer, SchedulingPolicy):
            answer = answer()
        if isinstance(answer, SchedulingPolicy):
            answer = {"policy": answer}
        if not isinstance(answer, Mapping):
            names = translated(" and ").join(may_set)
            raise NotYet(f"give a SchedulingPolicy, or a dict with {names}.")
        for name, value in answer.items():
            if name not in may_set:
                raise NotYet(f"{name!r} is not yours to change; {', '.join(may_set)} may be.")
            if name != "policy":
                if not (is_whole(value) and 0 <= value <= 10_000):
                    raise NotYet(f"{name} is a whole number from 0 to 10,000, not {value!r}.")
                answer = {**answer, name: whole(value)}
            if isinstance(value, type) and issubclass(value, SchedulingPolicy):
                answer = {**answer, name: value()}
        return dict(answer)

    def _judge(self, answer: Any, targets: dict[str, float], **_) -> str:
        trace = self.run(answer)
        reached = {name: METRICS[name](trace) for name in targets}
        told = [
            f"{name} is {reached[name]:.4g}, at most {most:.4g} is asked for: {self.missed[name]}"
            for name, most in targets.items()
            if reached[name] > most
        ]
        if told:
            raise NotYet(sentence(translated("; ").join(told)))
        return f"{', '.join(f'{name} {value:.4g}' for name, value in reached.items())}."
