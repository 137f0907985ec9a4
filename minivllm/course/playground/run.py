"""run: the page's main question. Settings in; figures, numbers and the frames of each step out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from math import isnan
from typing import Any

from minivllm.course.playground.readers_code import MODULE, InReadersCode, Printed, run_source
from minivllm.course.playground.serve import serve
from minivllm.course.playground.settings import YOURS, EngineSettings, Workload, read
from minivllm.lab.sim.result import percentiles
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.draw.step_axis import ROOM, StepAxis
from minivllm.lab.viz.figures.latency import Latencies, read_latencies
from minivllm.lab.viz.figures.timeline import compare, timeline
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.lab.viz.model.times import step_milliseconds
from minivllm.lab.viz.page.page import run_to_json
from minivllm.metrics.loggers import WINDOWS_KEEP_ENDS
from minivllm.request import Request
from minivllm.scheduling.livelock import LivelockError
from minivllm.scheduling.policies import SchedulingPolicy, make_policy
from minivllm.trace import Trace
from minivllm.utils.validation import check, is_one_of

AXES = ("steps", "seconds")


def run(
    workload: Any, engines: Any, axis: str = "steps", source: str | None = None
) -> dict[str, Any]:
    """Serve the same requests with one engine or with two.

    Args:
        workload: settings of ``Workload``, by name.
        engines: by the name of a run ("A", "B"), settings of ``EngineSettings``.
        axis: of the timeline: "steps", or "seconds" as the cost model has them.
        source: of the reader's policy, which an engine's policy "yours" means.

    Returns: "svg" and "alt" of the timeline, "printed" (by the policy), and "runs", by name:
        "numbers", "requests" (a row each), "run" (what draw.js draws), and "columns", the left edge
        of each step and the end, in pixels of the SVG.

    Raises:
        ValueError: for a setting that is out of range, or a request that could never run.
        InReadersCode: if the policy cannot be compiled, raises, or does not let all requests end.
    """
    check(is_one_of(axis, AXES), "axis", axis, " or ".join(AXES))
    check(isinstance(engines, Mapping) and 1 <= len(engines) <= 2, "engines", engines, "one or two")
    wanted = read(Workload, workload, "the workload")
    settings = {
        name: read(EngineSettings, each, f"engine {name}") for name, each in engines.items()
    }
    with redirect_stdout(Printed()) as printed:
        served = {name: _serve(wanted, each, source, name) for name, each in settings.items()}
    traces = {name: trace for name, (_, trace) in served.items()}
    if len(traces) == 1:
        figure = timeline(next(iter(traces.values())), clock=axis)
    else:
        figure = compare(traces, clock=axis)
    edges = _columns(traces, axis)
    hits = "cache hits"
    if any(keeps_prompt_ends(each) for each in settings.values()):
        hits += f" ({WINDOWS_KEEP_ENDS})"
    return {
        "svg": figure.svg,
        "alt": figure.alt,
        "printed": printed.getvalue(),
        "runs": {
            name: _told(requests, trace, edges=edges[name], hits=hits)
            for name, (requests, trace) in served.items()
        },
    }


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


def _serve(
    workload: Workload, engine: EngineSettings, source: str | None, name: str
) -> tuple[list[Request], Trace]:
    """Make the requests, and serve them with the engine of this name.

    An error of the reader's policy says its line, any other one the engine.
    """
    if engine.policy == YOURS:
        check(isinstance(source, str), "source", source, "the code of your policy")
        policy = policy_of(source)
    else:
        policy = make_policy(engine.policy)
    requests = workload.requests(bool(policy.uses_priority))
    try:
        return requests, serve(requests, engine, policy)
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


def keeps_prompt_ends(engine: EngineSettings) -> bool:
    """True if a window's blocks can be found only before the ends of prompts."""
    caches = engine.sliding_window and engine.enable_prefix_caching
    return bool(caches) and engine.prefix_cache_retention_interval == 0


def _told(requests: list[Request], trace: Trace, edges: list[float], hits: str) -> dict[str, Any]:
    """All that the page shows of one run, but for its timeline; ``hits`` names the cache hits."""
    latencies = read_latencies(trace, "seconds")
    return {
        "numbers": _numbers(latencies, trace, hits),
        "requests": _rows(latencies, trace, {r.request_id: r.priority for r in requests}),
        "run": run_to_json(trace),
        "columns": edges,
    }


def _columns(traces: dict[str, Trace], axis: str) -> dict[str, list[float]]:
    """Left edges of the steps of each run, and its end, as the timeline draws them."""
    each = {name: step_milliseconds(t, read_history(t), axis) for name, t in traces.items()}
    if axis == "steps":
        last = max(trace.num_steps for trace in traces.values()) - 1
        axes = dict.fromkeys(traces, StepAxis(0, last))
    else:
        scale = ROOM / max(map(sum, each.values()))
        axes = {name: StepAxis(0, len(ms) - 1, ms, scale) for name, ms in each.items()}
    return {
        name: [round(axes[name].x(step), 2) for step in range(trace.num_steps)]
        + [round(axes[name].x(trace.num_steps - 1) + axes[name].width(trace.num_steps - 1), 2)]
        for name, trace in traces.items()
    }


def _numbers(latencies: Latencies, trace: Trace, hits_name: str) -> list[list[Any]]:
    """Name, value and unit of each number; of the latencies, the middle and the worst."""
    found = {name: percentiles(values, (50, 100)) for name, values in latencies.values.items()}
    spans = latencies.spans
    asked = sum(span.num_prompt_tokens for span in spans)
    hits = sum(span.num_cached_tokens for span in spans)
    history = read_history(trace)
    return [
        ["TTFT, median", _ms(found["TTFT"]["p50"]), "ms"],
        ["TTFT, worst", _ms(found["TTFT"]["p100"]), "ms"],
        ["ITL, median", _ms(found["ITL"]["p50"]), "ms"],
        ["ITL, worst", _ms(found["ITL"]["p100"]), "ms"],
        ["total time", _ms(1000 * max(span.finished_time for span in spans)), "ms"],
        ["steps", trace.num_steps, ""],
        ["preemptions", history.counts["preempted"], ""],
        ["tokens computed", history.num_computed, ""],
        [hits_name, f"{hits} of {asked}", "tokens"],
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
