"""The figures of a load: throughput, TTFT, TPOT, ITL and E2EL, under the names that vLLM saves.

(vLLM: calculate_metrics in vllm/benchmarks/serve.py)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median
from typing import Any

# By its name in options and keys: its name in the table, and the heading there.
LATENCIES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


@dataclass
class RequestFuncOutput:
    """One request as a client saw it (vLLM: ``RequestFuncOutput``). All times are in seconds."""

    start_time: float = 0.0  # when it was sent, by the client's clock
    success: bool = False
    error: str = ""
    prompt_len: int = 0  # tokens, as the server counted them
    output_tokens: int = 0
    ttft: float = 0.0  # from sending to the first event with text
    itl: list[float] = field(
        default_factory=list
    )  # between two events; one may hold several tokens
    latency: float = 0.0  # from sending to the last event
    generated_text: str = ""
    queue_time: float = 0.0  # how long --max-concurrency kept it back before it was sent

    @property
    def tpot(self) -> float:
        """Seconds a token after the first; 0 for an answer of one token."""
        return (
            (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0
        )


def samples(outputs: Sequence[RequestFuncOutput]) -> dict[str, list[float]]:
    """The values of each of ``LATENCIES``, in seconds, over requests that succeeded.

    A request of one token has no TPOT. Gaps of all requests are one list: a long answer weighs more
    in ITL than a short one, and as much as any in TPOT.
    """
    return {
        "ttft": [output.ttft for output in outputs],
        "tpot": [output.tpot for output in outputs if output.output_tokens > 1],
        "itl": [gap for output in outputs for gap in output.itl],
        "e2el": [output.latency for output in outputs],
    }


def calculate_metrics(
    outputs: Sequence[RequestFuncOutput],
    duration: float,
    selected: Sequence[str] = tuple(LATENCIES),
    percentiles: Sequence[float] = (99,),
    goodput: dict[str, float] | None = None,
) -> dict[str, Any]:
    """All figures of a run.

    Args:
        outputs: one for each request.
        duration: seconds from the first request to the last answer.
        selected: which of ``LATENCIES`` to summarize.
        percentiles: of these, from 0 to 100.
        goodput: milliseconds that ttft, tpot and e2el of a good request may take at most.
    """
    done = [output for output in outputs if output.success]
    total_in = sum(output.prompt_len for output in done)
    total_out = sum(output.output_tokens for output in done)
    good = sum(is_good(output, goodput) for output in done) if goodput else None
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(outputs) - len(done),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(done) / duration,
        "request_goodput": None if good is None else good / duration,
        "output_throughput": total_out / duration,
        "total_token_throughput": (total_in + total_out) / duration,
        "max_output_tokens_per_s": peak_tokens_per_second(done),
        "max_concurrent_requests": peak_concurrency(done),
    }
    for name, values in samples(done).items():
        if name in selected:
            found |= summary(name, values, percentiles)
    return found


def summary(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles of seconds, in milliseconds; of nothing, zeros.

    A percentile between two values is interpolated, as NumPy does by default.
    """
    in_ms = sorted(1000 * value for value in values or [0.0])
    mean = fmean(in_ms)
    found = {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": median(in_ms),
        f"std_{name}_ms": math.sqrt(fmean((value - mean) ** 2 for value in in_ms)),
    }
    for p in percentiles:
        place = (len(in_ms) - 1) * p / 100
        below, above = in_ms[math.floor(place)], in_ms[math.ceil(place)]
        found[f"p{p:g}_{name}_ms"] = below + (above - below) * (place % 1)
    return found


def is_good(output: RequestFuncOutput, goodput: dict[str, float]) -> bool:
    """True if none of its times is above the limit of that name, in milliseconds."""
    times = {"ttft": output.ttft, "tpot": output.tpot, "e2el": output.latency}
    return all(times[name] * 1000 <= limit for name, limit in goodput.items())


def peak_tokens_per_second(done: Sequence[RequestFuncOutput]) -> float:
    """Most tokens in one second of the run, counted from its first request.

    An event's tokens are not known one by one: each counts as its answer's mean. (vLLM counts
    events, which is less where a server puts several tokens into one.)
    """
    if not done:
        return 0.0
    start = min(output.start_time for output in done)
    seconds: dict[int, float] = {}
    for output in done:
        gaps = [output.start_time - start + output.ttft, *output.itl]
        for moment in accumulate(gaps):
            second = math.floor(moment)
            seconds[second] = seconds.get(second, 0.0) + output.output_tokens / len(gaps)
    return max(seconds.values())


def peak_concurrency(done: Sequence[RequestFuncOutput]) -> int:
    """Most requests that were under way at one moment; one that ends makes room for the next."""
    changes = sorted(
        [(output.start_time, 1) for output in done]
        + [(output.start_time + output.latency, -1) for output in done]
    )
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
