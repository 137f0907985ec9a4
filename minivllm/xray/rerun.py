"""Parts of a recorded run that our own scheduler is given: requests, tokens, settings.

A run of vLLM has tokens, but no model here: what was sampled there is sampled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.drafting import PaddingScheduler, speculative_limits
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import (
    Finished,
    Record,
    RequestAdded,
    Sampled,
    StepEnded,
    StepStarted,
)
from minivllm.xray.format import XRay

_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill",
           "long_prefill_token_threshold", "policy")  # fmt: skip


class RecordedStep(NamedTuple):
    """A step, and what came between it and the one before."""

    number: int
    before: list[Record]
    records: list[Record]


def recorded_steps(trace: Trace) -> Iterator[RecordedStep]:
    """Yield the steps of a trace that have ended."""
    before: list[Record] = []
    inside: list[Record] | None = None
    for record in trace.records:
        if isinstance(record, StepStarted):
            inside = []
        (before if inside is None else inside).append(record)
        if isinstance(record, StepEnded) and inside is not None:
            yield RecordedStep(record.step, before, inside)
            before, inside = [], None


def check_whole(xray: XRay) -> None:
    """Raise ``ValueError`` unless the run can be given to our scheduler from its beginning."""
    if xray.trace.first_step > 0:
        raise ValueError(
            f"the X-ray begins with step {xray.trace.first_step}: older ones were dropped, and a "
            "run can be computed again only from its beginning (MINIVLLM_XRAY_MAX_BYTES)."
        )
    if xray.header["settings"].get("async_scheduling"):
        raise ValueError(
            "the run was scheduled asynchronously, which our scheduler does not do; record one "
            "with --no-async-scheduling."
        )
    adapters = {r.lora_name for r in xray.trace.records if isinstance(r, RequestAdded)} - {None}
    if adapters:
        raise ValueError(
            f"requests with adapters are not run again: {', '.join(sorted(adapters))}."
        )


def arrivals_of(xray: XRay) -> dict[str, float]:
    """Return when each request came to the server, in seconds, by its id."""
    added = (record for record in xray.trace.records if isinstance(record, RequestAdded))
    return {
        r.request_id: xray.requests.get(r.request_id, {}).get("arrival_time", r.time) for r in added
    }


def requests_of(xray: XRay) -> dict[str, Request]:
    """The run's requests, by id. Each ends after as many tokens as it had there.

    One that was aborted, or has not ended, has the limit that it asked for.
    """
    num_tokens = Counter(r.seq_id for r in xray.trace.records if isinstance(r, Sampled))
    ended = {
        r.seq_id for r in xray.trace.records if isinstance(r, Finished) and r.reason != "abort"
    }
    has_priorities = xray.header["settings"].get("policy") == "priority"
    found, arrivals = {}, arrivals_of(xray)
    seen = 0.0  # the last time that the scheduler looked for new ones, and this one had not come
    for record in xray.trace.records:
        if isinstance(record, StepStarted):
            seen = record.time
        if not isinstance(record, RequestAdded):
            continue
        name = record.request_id
        asked = xray.requests.get(name, {})
        most = xray.header["settings"]["max_model_len"]
        max_tokens = num_tokens[name] if name in ended else asked.get("max_tokens", most)
        found[name] = Request(
            name,
            list(record.prompt_token_ids),
            SamplingParams(max_tokens=max(1, max_tokens), ignore_eos=True),
            arrival_time=max(arrivals[name], seen),
            priority=asked.get("priority", 0) if has_priorities else 0,
        )
    return found


def make_scheduler(xray: XRay) -> Scheduler:
    """Our scheduler with the run's settings, and a trace of its own."""
    settings, header = xray.header["settings"], xray.header
    limits = {name: settings[name] for name in _LIMITS if name in settings}
    cls: type[Scheduler] = Scheduler
    if num_drafts := settings.get("num_speculative_tokens", 0):
        method = settings.get("speculative_method", "ngram")
        speculative = {"num_speculative_tokens": num_drafts, "method": method}
        limits |= speculative_limits(speculative)
        cls = PaddingScheduler
    trace = Trace(header["num_blocks"], header["block_size"], settings["max_num_batched_tokens"])
    caching = settings.get("enable_prefix_caching", True)
    sizes = header["num_blocks"], header["block_size"]
    manager = KVCacheManager(*sizes, caching, trace=trace)
    return cls(SchedulerConfig(**limits), manager, trace)
