"""run: the page's main question. Settings in; numbers, the timeline and the steps' frames out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isnan
from typing import Any

from minivllm.course.playground.readers_code import MODULE, InReadersCode, Printed, run_source
from minivllm.course.playground.serve import serve
from minivllm.course.playground.settings import YOURS, EngineSettings, Workload, read
from minivllm.lab.sim.result import percentiles
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.figures.latency import Latencies, read_latencies
from minivllm.lab.viz.model.timeline_model import History, TimelineWindow, read_history
from minivllm.lab.viz.model.times import step_milliseconds
from minivllm.lab.viz.page.page import owners_to_json, run_to_json
from minivllm.lab.viz.page.timeline_data import timeline_to_json
from minivllm.metrics.loggers import WINDOWS_KEEP_ENDS
from minivllm.request import Request
from minivllm.scheduling.livelock import LivelockError
from minivllm.scheduling.policies import SchedulingPolicy, make_policy
from minivllm.trace import Trace
from minivllm.utils.validation import check

KEPT = 8  # runs
HITS = "cache hits"


@dataclass(frozen=True)
class Served:
    """Result of one engine, kept for a while: mostly one of two engines is changed."""

    engine: EngineSettings
    requests: list[Request]
    trace: Trace
    printed: str  # by the policy

    @cached_property
    def told(self) -> dict[str, Any]:
        """All that the page shows, but for the steps."""
        latencies = read_latencies(self.trace, "seconds")
        history = read_history(self.trace)
        priorities = {request.request_id: request.priority for request in self.requests}
        whole = TimelineWindow.of(history, 0, self.trace.num_steps - 1)
        milliseconds = step_milliseconds(self.trace, history, "seconds")
        return {
            "numbers": _numbers(latencies, history),
            "requests": _rows(latencies, self.trace, priorities),
            "timeline": {
                **timeline_to_json(whole, history.rows.values(), milliseconds),
                "owners": owners_to_json(history.owners),
            },
        }


def run(workload: Any, engines: Any, source: str | None = None) -> dict[str, Any]:
    """Serve the same requests with one engine or with two.

    Args:
        workload: settings of ``Workload``, by name.
        engines: by the name of a run ("1", "2"), settings of ``EngineSettings``.
        source: of the reader's policy, which an engine's policy "yours" means.

    Returns: "printed" (by the policy), and "runs", by name: "numbers", "requests" (a row each), and
        "timeline" (see ``timeline_to_json``, with its "owners").

    Raises:
        ValueError: for a setting that is out of range, or a request that could never run.
        InReadersCode: if the policy cannot be compiled, raises, or does not let all requests end.
    """
    served = _all_served(workload, engines, source)
    told = {name: each.told for name, each in served.items()}
    if any(keeps_prompt_ends(each.engine) for each in served.values()):
        told = {name: _with_hits_explained(each) for name, each in told.items()}
    return {"printed": "".join(each.printed for each in served.values()), "runs": told}


def steps(workload: Any, engines: Any, source: str | None = None) -> dict[str, Any]:
    """The steps of the same runs, by name: what draw.js draws. Arguments are those of ``run``."""
    served = _all_served(workload, engines, source)
    return {"runs": {name: run_to_json(each.trace) for name, each in served.items()}}


def _all_served(workload: Any, engines: Any, source: Any) -> dict[str, Served]:
    check(isinstance(engines, Mapping) and 1 <= len(engines) <= 2, "engines", engines, "one or two")
    wanted = read(Workload, workload, "the workload")
    settings = {
        name: read(EngineSettings, each, f"engine {name}") for name, each in engines.items()
    }
    return {name: _serve(wanted, each, source, name) for name, each in settings.items()}


def policy_of(source: str) -> SchedulingPolicy:
    """The policy that the reader's code defines: its last class that extends SchedulingPolicy.

    Raises:
        InReadersCode: if it cannot be compiled or made, or there is none.
    """
    found = [
        value
        for value in run_source(source).values()
        if isinstance(value, type)
        and issubclass(value, SchedulingPolicy)
        and value.__module__ == MODULE
    ]
    if not found:
        raise InReadersCode("define a class that extends SchedulingPolicy.", None)
    try:
        return found[-1]()
    except BaseException as error:
        raise InReadersCode.of(error) from error


def _serve(workload: Workload, engine: EngineSettings, source: Any, name: str) -> Served:
    """Serve the requests with the engine of this name.

    An error of the reader's policy says its line, any other one the engine.
    """
    is_own = engine.policy == YOURS
    if is_own:
        check(isinstance(source, str), "source", source, "the code of your policy")
    try:
        return _served(workload, engine, source if is_own else None)
    except InReadersCode:
        raise
    except BaseException as error:
        found = InReadersCode.of(error)
        if found.line is not None:
            raise found from error
        if isinstance(error, LivelockError):
            raise InReadersCode(str(error), None) from error
        if isinstance(error, ValueError):  # about a setting
            raise ValueError(f"Engine {name}: {error}") from error
        text = f"the scheduler cannot go on with what this policy returns ({found})."
        raise InReadersCode(text, None) from error


@lru_cache(maxsize=KEPT)
def _served(workload: Workload, engine: EngineSettings, source: str | None) -> Served:
    with redirect_stdout(Printed()) as printed:
        policy = make_policy(engine.policy) if source is None else policy_of(source)
        requests = workload.requests(bool(policy.uses_priority))
        trace = serve(requests, engine, policy)
    return Served(engine, requests, trace=trace, printed=printed.getvalue())


def keeps_prompt_ends(engine: EngineSettings) -> bool:
    """True if a window's blocks can be found only before the ends of prompts."""
    caches = engine.sliding_window and engine.enable_prefix_caching
    return bool(caches) and engine.prefix_cache_retention_interval == 0


def _with_hits_explained(told: dict[str, Any]) -> dict[str, Any]:
    """The same, with a longer name for the cache hits of windows."""
    name = f"{HITS} ({translated(WINDOWS_KEEP_ENDS)})"
    numbers = [[name if each[0] == HITS else each[0], *each[1:]] for each in told["numbers"]]
    return {**told, "numbers": numbers}


def _numbers(latencies: Latencies, history: History) -> list[list[Any]]:
    """Name, value and unit of each number; of the latencies, the middle and the worst."""
    found = {name: percentiles(values, (50, 100)) for name, values in latencies.values.items()}
    spans = latencies.spans
    asked = sum(span.num_prompt_tokens for span in spans)
    hits = sum(span.num_cached_tokens for span in spans)
    return [
        [translated("TTFT, median"), _ms(found["TTFT"]["p50"]), "ms"],
        [translated("TTFT, worst"), _ms(found["TTFT"]["p100"]), "ms"],
        [translated("ITL, median"), _ms(found["ITL"]["p50"]), "ms"],
        [translated("ITL, worst"), _ms(found["ITL"]["p100"]), "ms"],
        ["total time", _ms(1000 * max(span.finished_time for span in spans)), "ms"],
        [translated("steps"), len(history.steps), ""],
        [translated("preemptions"), history.counts["preempted"], ""],
        ["tokens computed", history.num_computed, ""],
        [HITS, f"{hits} of {asked}", translated("tokens")],
        ["blocks at the peak", f"{history.peak_blocks} of {history.num_usable_blocks}", ""],
    ]


def _ms(value: float) -> str:
    """Milliseconds as text; a dash for a latency that no request has."""
    return "–" if isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _rows(latencies: Latencies, trace: Trace, priorities: dict[str, int]) -> list[list[Any]]:
    """Rows of the requests, in order of arrival: the owner's index, and numbers."""
    index = {seq_id: place for place, seq_id in enumerate(owners_of(trace))}
    return [
        [
            index[span.request_id],
            _ms(1000 * span.arrival_time),
            priorities[span.request_id],
            span.num_prompt_tokens,
            span.num_output_tokens,
            span.num_cached_tokens,
            _ms(1000 * span.ttft),
            _ms(1000 * span.finished_time),
            span.num_preemptions,
        ]
        for span in sorted(latencies.spans, key=lambda span: index[span.request_id])
    ]
