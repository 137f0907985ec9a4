"""Parts of a recorded run that our own scheduler is given: requests, tokens, settings.

A run of vLLM has tokens, but no model here: what was sampled there is sampled again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.groups.options import scheduler_block_size
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.make import make_request, make_vllms_scheduler
from minivllm.lab.sim.replay_groups import read_groups
from minivllm.request import Request
from minivllm.scheduling.policies import make_policy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import Finished, RequestAdded, Sampled, StepStarted
from minivllm.xray.fields import needed
from minivllm.xray.format import XRay, groups_of

# settings of vLLM that our scheduler does not have, and their values without effect
_NOT_OURS = {"watermark_blocks": 0, "scheduler_reserve_full_isl": True,
             "long_prefill_token_threshold_adaptive": False}  # fmt: skip
_TOLERANCE = 0.001  # seconds between two clocks that go together
_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill",
           "long_prefill_token_threshold", "policy")  # fmt: skip


def check_whole(xray: XRay) -> None:
    """Raise ``ValueError`` unless the run can be given to our scheduler from its beginning."""
    if xray.trace.first_step > 0:
        raise ValueError(
            f"the X-ray begins with step {xray.trace.first_step}: older ones were dropped, and a "
            "run can be computed again only from its beginning (MINIVLLM_XRAY_MAX_BYTES)."
        )
    if is_async(xray) and xray.header["settings"].get("num_speculative_tokens"):
        raise ValueError(
            "the run was scheduled asynchronously with drafts, which our scheduler does not do; "
            "record one with --no-async-scheduling."
        )
    for name, without in _NOT_OURS.items():
        if (value := xray.header["settings"].get(name, without)) != without:
            raise ValueError(f"the run had {name}={value!r}, which our scheduler does not do.")
    adapters = {r.lora_name for r in xray.trace.records if isinstance(r, RequestAdded)} - {None}
    if adapters:
        raise ValueError(
            f"requests with adapters are not run again: {', '.join(sorted(adapters))}."
        )


def is_async(xray: XRay) -> bool:
    """True if vLLM's scheduler left placeholders for tokens on their way."""
    header = xray.header
    by_name = header.get("scheduler") == "AsyncTracingScheduler"  # of a vLLM that was made to
    return header["settings"].get("async_scheduling", False) or by_name


def num_plans_of(xray: XRay) -> int:
    """Number of plans that could be in flight at once."""
    return xray.header["settings"].get("max_concurrent_batches", 1 + is_async(xray))


def arrivals_of(xray: XRay) -> dict[str, float]:
    """Return when each request came to the server, in seconds, by its id.

    Where the wall clock was set meanwhile, that is when the scheduler got it.
    """
    return {
        r.request_id: r.time if _is_impossible(xray, r) else _arrival(xray, r)
        for r in xray.trace.records
        if isinstance(r, RequestAdded)
    }


def num_impossible_arrivals(xray: XRay) -> int:
    """Number of requests that came, by the wall clock, before the run or behind their own plan."""
    return sum(_is_impossible(xray, r) for r in xray.trace.of(RequestAdded))


def _arrival(xray: XRay, record: RequestAdded) -> float:
    asked = xray.requests.get(record.request_id, {})
    arrival = asked.get("arrival_time", record.time)
    return arrival - asked.get("clock_drift", 0.0)  # of the wall clock, since the run began


def _is_impossible(xray: XRay, record: RequestAdded) -> bool:
    return not -_TOLERANCE <= _arrival(xray, record) <= record.time + _TOLERANCE


def requests_of(xray: XRay, joins: bool = True) -> dict[str, Request]:
    """The run's requests, by id. Each ends after as many tokens as it had there.

    One that was aborted, or has not ended, has the limit that it asked for. So has one of an
    asynchronous run that ended by a stop token: when others were planned, it was not known.

    Args:
        joins: its arrival is when it joined the queue, not the time that vLLM orders by.

    Raises:
        ValueError: for an unknown policy.
    """
    ends = ends_of(xray)
    stopped = set()
    if is_async(xray):
        stopped = {r.seq_id for r in xray.trace.records if isinstance(r, Finished)
                   and r.reason != "length"}  # fmt: skip
    policy = make_policy(xray.header["settings"].get("policy", "fcfs"))
    most = needed(xray.header, "max_model_len")
    num_slots = (xray.header["num_blocks"] - 1) * xray.header["block_size"]
    if groups_of(xray.header):
        num_slots = most  # windows forget: a longer one may fit
    found = {}
    arrivals = arrivals_of(xray)
    seen = 0.0  # the last time that the scheduler looked for new ones, and this one had not come
    for record in xray.trace.records:
        if isinstance(record, StepStarted):
            seen = record.time
        if not isinstance(record, RequestAdded):
            continue
        name = record.request_id
        asked = xray.requests.get(name, {})
        num_prompt = len(record.prompt_token_ids)
        max_tokens = asked.get("max_tokens") or most
        if name in ends and name not in stopped:
            max_tokens = ends[name]
        elif num_prompt + max_tokens > num_slots:  # it ended before it could get there
            max_tokens = max(ends.get(name, 0) + 1, num_slots - num_prompt)
        arrival = max(arrivals[name], seen)
        found[name] = make_request(
            name,
            list(record.prompt_token_ids),
            max(1, max_tokens),
            arrival_time=arrival if joins else asked.get("arrival_time", record.time),
            priority=asked.get("priority", 0) if policy.uses_priority else 0,
        )
    return found


def ends_of(xray: XRay) -> dict[str, int]:
    """Number of tokens at the end of each request, by id; without those that were aborted."""
    records = xray.trace.records
    num_tokens = Counter(r.seq_id for r in records if isinstance(r, Sampled))
    ended = [r.seq_id for r in records if isinstance(r, Finished) and r.reason != "abort"]
    return {name: num_tokens[name] for name in ended}


def make_scheduler(xray: XRay, clock: Callable[[], float] = time.perf_counter) -> Scheduler:
    """Our scheduler with the run's settings, and a trace of its own by this clock.

    Raises:
        ValueError: if a limit is not in the header.
    """
    settings = xray.header["settings"]
    header = xray.header
    for name in ("max_num_seqs", "max_model_len"):
        needed(header, name)
    num_blocks, block_size = header["num_blocks"], header["block_size"]
    budget = settings["max_num_batched_tokens"]
    groups = groups_of(header)
    trace = Trace(num_blocks, block_size, budget, clock=clock, groups=groups)
    caching = settings.get("enable_prefix_caching", True)
    manager = KVCacheManager(num_blocks, block_size, caching, trace=trace)
    if groups:
        specs = read_groups(header)
        manager = HybridKVCacheManager(
            num_blocks,
            scheduler_block_size(specs),
            caching,
            trace=trace,
            specs=specs,
            max_model_len=needed(header, "max_model_len"),
            max_in_flight_tokens=budget * num_plans_of(xray),
            retention_interval=settings.get("prefix_cache_retention_interval", 0),
        )
    speculative = None
    if num_drafts := settings.get("num_speculative_tokens", 0):
        method = settings.get("speculative_method", "ngram")
        speculative = {"num_speculative_tokens": num_drafts, "method": method}
    return make_vllms_scheduler(
        manager,
        trace,
        speculative=speculative,
        async_scheduling=is_async(xray),
        **{name: settings[name] for name in _LIMITS if name in settings},
    )
