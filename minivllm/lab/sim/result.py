"""SimulationResult: TTFT, TPOT, ITL, throughput and memory usage of a simulated run."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.trace import Trace
from minivllm.utils.validation import check

PERCENTILES = (50, 90, 99)


def percentiles(values: Sequence[float], ranks: tuple[int, ...] = PERCENTILES) -> dict[str, float]:
    """Percentiles by linear interpolation: ``{"p50": ...}``.

    The rule is that of ``statistics.quantiles(method="inclusive")`` and NumPy. Without values all
    are nan.
    """
    for rank in ranks:
        check(0 <= rank <= 100, "a percentile", rank, "between 0 and 100")
    ordered = sorted(values)
    if not ordered:
        return {f"p{rank}": math.nan for rank in ranks}
    result = {}
    for rank in ranks:
        below, part = divmod(rank * (len(ordered) - 1), 100)
        above = min(below + 1, len(ordered) - 1)
        low, high = ordered[below], ordered[above]
        result[f"p{rank}"] = low + (high - low) * part / 100
    return result


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Arrival, first token and end of one request, in simulated seconds."""

    request_id: str
    arrival_time: float
    first_token_time: float
    finished_time: float
    num_prompt_tokens: int
    num_output_tokens: int  # of each sample
    num_samples: int
    num_cached_tokens: int  # of its prompt, when it was first scheduled
    num_preemptions: int

    @property
    def ttft(self) -> float:
        """Time to first token: waiting and prefill."""
        return self.first_token_time - self.arrival_time

    @property
    def tpot(self) -> float:
        """Time per output token of a sample, after the first; nan if there is no other."""
        if self.num_output_tokens == 1:
            return math.nan
        return (self.finished_time - self.first_token_time) / (self.num_output_tokens - 1)


@dataclass(frozen=True)
class SimulationResult:
    """The numbers of one run. Times are simulated seconds, but for ``wall_seconds``.

    Attributes:
        requests: in the workload's order.
        inter_token_times: gaps between two tokens of the same sequence, of all sequences (ITL).
        seconds: from 0 to the end of the last step, and of its tokens' way to the client.
        num_steps, num_preemptions: of the scheduler; of several replicas the sum. A pipeline's step
            is a call of the engine, as in its trace.
        num_blocks, block_size: the pool's, of each replica; a contiguous one has blocks of a slot.
        prefix_hit_rate: the share of looked-up tokens that the prefix cache had, 0 to 1.
        memory: what the slots did, as shares of the pool, mean over the time of all steps.
        memory_under_load: the same over those steps in which a request had to wait.
        tokens_in_held: the share of held slots that held tokens, mean over the same time as memory.
        saved_by_sharing: the share of blocks that sharing saves, mean over the same time.
        wall_seconds: what the simulation itself took.
        num_wasted_tokens: computed for sequences that had ended meanwhile, with plans in flight.
        traces: of the replicas, by their own clocks; empty unless ``trace=True``.
    """

    requests: tuple[RequestTimes, ...]
    inter_token_times: array = field(repr=False)
    seconds: float
    num_steps: int
    num_preemptions: int
    num_blocks: int
    block_size: int
    prefix_hit_rate: float
    memory: SlotUsage
    memory_under_load: SlotUsage
    tokens_in_held: float
    saved_by_sharing: float
    wall_seconds: float
    num_wasted_tokens: int = 0
    traces: tuple[Trace, ...] = field(default=(), repr=False)

    @property
    def trace(self) -> Trace:
        """The trace of the only replica, or of the first.

        Raises:
            ValueError: if there is none.
        """
        check(self.traces, "trace", None, "asked for with simulate(..., trace=True)")
        return self.traces[0]

    @property
    def request_throughput(self) -> float:
        """Finished requests per second."""
        return self._per_second(len(self.requests))

    @property
    def input_throughput(self) -> float:
        """Prompt tokens per second, those found in the prefix cache included."""
        return self._per_second(sum(r.num_prompt_tokens for r in self.requests))

    @property
    def output_throughput(self) -> float:
        """Generated tokens per second, of all samples."""
        return self._per_second(sum(r.num_output_tokens * r.num_samples for r in self.requests))

    def _per_second(self, count: int) -> float:
        """A rate over the whole run; infinite if that took no time."""
        return count / self.seconds if self.seconds else math.inf

    @cached_property
    def ttft(self) -> dict[str, float]:
        """Percentiles of the time to first token."""
        return percentiles([r.ttft for r in self.requests])

    @cached_property
    def tpot(self) -> dict[str, float]:
        """Percentiles over requests of the mean time per output token after the first."""
        return percentiles([r.tpot for r in self.requests if r.num_output_tokens > 1])

    @cached_property
    def itl(self) -> dict[str, float]:
        """Percentiles over tokens of the time since the token before."""
        return percentiles(self.inter_token_times)
