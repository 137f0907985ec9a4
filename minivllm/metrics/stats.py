"""SchedulerStats, IterationStats and FinishedRequestStats: the statistics of one step.

Times are seconds of ``time.monotonic()``. (vLLM: vllm/v1/metrics/stats.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.metrics.spec_decode import SpecDecodingStats

# stages of ``SchedulerStats.num_kv_fetch_reqs_by_stage``
KV_FETCH_STAGES = ("waiting_to_start", "in_progress", "completed_waiting")


@dataclass
class SchedulerStats:
    """Queues and KV cache after a step. Counts of events are since the engine began."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0  # those on the host, and those that wait for K and V, included
    num_swapped_reqs: int = 0
    kv_cache_usage: float = 0.0  # a share of the blocks
    cpu_cache_usage: float = 0.0  # the same of the host's
    prefix_cache_queries: int = 0  # tokens that were looked for
    prefix_cache_hits: int = 0  # tokens that were found
    recent_prefix_cache_queries: int = 0  # the same two, over the last requests
    recent_prefix_cache_hits: int = 0
    external_prefix_cache_queries: int = 0  # the same four, of a KV connector
    external_prefix_cache_hits: int = 0
    recent_external_prefix_cache_queries: int = 0
    recent_external_prefix_cache_hits: int = 0
    # requests that wait for K and V from elsewhere, by stage; none unless some are fetched
    num_kv_fetch_reqs_by_stage: dict[str, int] = field(default_factory=dict)
    num_preemptions: int = 0
    # names of adapters that have requests, by where these are
    running_lora_adapters: list[str] = field(default_factory=list)
    waiting_lora_adapters: list[str] = field(default_factory=list)
    spec_decoding_stats: SpecDecodingStats | None = None  # of the last step, if it verified drafts


@dataclass
class FinishedRequestStats:
    """Times and token counts of a finished request."""

    finish_reason: str
    e2e_latency: float
    queued_time: float  # from arrival to the first scheduling
    prefill_time: float  # from there to the first token
    decode_time: float  # from there to the last
    num_prompt_tokens: int
    num_cached_tokens: int  # those of them that the prefix cache had
    num_generation_tokens: int  # of all samples
    max_num_generation_tokens: int  # of the longest
    num_preemptions: int
    params_n: int
    params_max_tokens: int | None

    @property
    def inference_time(self) -> float:
        return self.prefill_time + self.decode_time

    @property
    def num_computed_prompt_tokens(self) -> int:
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def mean_time_per_output_token(self) -> float:
        """Seconds per output token, the first left out: its time is the prefill's."""
        return self.decode_time / max(1, self.max_num_generation_tokens - 1)


@dataclass
class IterationStats:
    """Tokens and latencies of one step."""

    num_prompt_tokens: int = 0  # of prompts that were completed
    num_cached_tokens: int = 0  # those of them that were not computed here
    num_external_tokens: int = 0  # those of these that came from other engines
    num_generation_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
