"""EngineMetrics: the engine's counters, gauges and histograms, under vLLM's names.

They are counted here, with a bisection and an addition each, for every reader: ``/metrics``
(``prometheus``), ``LLM.get_metrics()`` and the log's line. (vLLM: PrometheusStatLogger in
vllm/v1/metrics/loggers.py)
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from minivllm.config import VllmConfig
from minivllm.metrics.reader import Counter, Gauge, Histogram, Metric, Vector
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.metrics.stats import (
    KV_FETCH_STAGES,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)

# Upper bounds in seconds, as vLLM has them.
_FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
                80, 160, 640, 2560)  # fmt: skip
_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
          80)  # fmt: skip
_REQUEST = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
            7680)  # fmt: skip
_ITERATION = (1, *(2**power for power in range(3, 15)))
_LENGTH = ()  # 1, 2, 5, 10, ... up to the longest sequence
# Bounds of the histograms, and the field of FinishedRequestStats that each counts; None: it counts
# something of every step.
_HISTOGRAMS: dict[str, tuple[tuple[float, ...], str | None]] = {
    "time_to_first_token_seconds": (_FIRST_TOKEN, None),
    "inter_token_latency_seconds": (_TOKEN, None),
    "request_time_per_output_token_seconds": (_TOKEN, "mean_time_per_output_token"),
    "e2e_request_latency_seconds": (_REQUEST, "e2e_latency"),
    "request_queue_time_seconds": (_REQUEST, "queued_time"),
    "request_inference_time_seconds": (_REQUEST, "inference_time"),
    "request_prefill_time_seconds": (_REQUEST, "prefill_time"),
    "request_decode_time_seconds": (_REQUEST, "decode_time"),
    "request_prompt_tokens": (_LENGTH, "num_prompt_tokens"),
    "request_prefill_kv_computed_tokens": (_LENGTH, "num_computed_prompt_tokens"),
    "request_generation_tokens": (_LENGTH, "num_generation_tokens"),
    "request_max_num_generation_tokens": (_LENGTH, "max_num_generation_tokens"),
    "request_params_max_tokens": (_LENGTH, "params_max_tokens"),
    "request_params_n": ((1, 2, 5, 10, 20), "params_n"),
    "iteration_tokens_total": (_ITERATION, None),
    "request_num_preemptions": ((1, 2, 3, 4, 5, 10, 20), "num_preemptions"),
}
_REASONS = ("stop", "length", "abort", "error", "repetition")
# The labels of cache_config_info; those without a setting here say "None".
CACHE_LABELS = (
    "_block_size_resolved", "block_size", "cache_dtype", "cache_hit_alignment_tokens",
    "effective_attention_block_size", "enable_mamba_shared_prefix_checkpoint",
    "enable_prefix_caching", "gpu_memory_utilization", "hash_block_size", "is_attention_free",
    "kv_cache_dtype_skip_layers", "kv_cache_layout", "kv_cache_max_concurrency",
    "kv_cache_memory_bytes", "kv_cache_size_tokens", "kv_offloading_backend",
    "kv_offloading_size", "kv_sharing_fast_prefill", "mamba_block_size", "mamba_cache_dtype",
    "mamba_cache_mode", "mamba_page_size_padded", "mamba_ssm_cache_dtype", "num_cpu_blocks",
    "num_gpu_blocks", "num_gpu_blocks_override", "prefix_cache_retention_interval",
    "prefix_caching_hash_algo", "prefix_match_unit", "replayssm_buffer_len",
    "skip_page_size_padded", "sliding_window", "swa_bounded_replay", "use_kda_recoverssm",
    "use_replayssm", "user_specified_block_size",
)  # fmt: skip


def one_two_five(most: int) -> tuple[int, ...]:
    """Bucket bounds 1, 2, 5, 10, 20, 50, ... up to ``most``."""
    bounds = []
    power = 1
    while power <= most:
        bounds += [m * power for m in (1, 2, 5) if m * power <= most]
        power *= 10
    return tuple(bounds)


class Buckets:
    """Buckets of a histogram, and the sum of what they count."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> dict[str, int]:
        """Cumulative counts by upper bound: observations that are at most as large."""
        total = 0
        found = {}
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found["+Inf" if bound == float("inf") else str(float(bound))] = total
        return found


class EngineMetrics:
    """vLLM's metrics of one engine.

    Args:
        max_model_len: where the buckets for tokens end.
        cache_config: settings of the KV cache, for those of ``CACHE_LABELS`` that we have.
        num_spec_tokens: the most drafts of a sequence; 0: there are none, nor metrics of them.
        max_loras: the most adapters in a step; 0: there are none, nor a metric of them.
        keeps_prompt_ends: whether sliding windows keep nothing else for others to find.
        fetches: True if K and V of other engines are fetched; else there is no metric of that.

    Attributes:
        processor_cache: the front end's ``ProcessorCache``; None: there are no metrics of it.
    """

    def __init__(
        self,
        max_model_len: int,
        cache_config: dict[str, object],
        num_spec_tokens: int = 0,
        max_loras: int = 0,
        keeps_prompt_ends: bool = False,
        fetches: bool = False,
    ):
        self.keeps_prompt_ends = keeps_prompt_ends
        self.scheduler = SchedulerStats()
        self.processor_cache: Any = None
        self.max_loras = max_loras
        self.fetches = fetches
        self.spec_decoding = SpecDecodingStats(num_spec_tokens) if num_spec_tokens else None
        self.cache_config = {name: str(cache_config.get(name)) for name in CACHE_LABELS}
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_external_tokens = 0
        self.num_generation_tokens = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        lengths = one_two_five(max_model_len)
        self.histograms = {
            name: Buckets(bounds or lengths) for name, (bounds, _) in _HISTOGRAMS.items()
        }

    @classmethod
    def from_config(
        cls, config: VllmConfig, num_gpu_blocks: int, num_cpu_blocks: int
    ) -> EngineMetrics:
        """Make the metrics of an engine with this configuration and a KV cache of this size."""
        blocks = {"num_gpu_blocks": num_gpu_blocks, "num_cpu_blocks": num_cpu_blocks}
        limits = config.scheduler_config
        settings = vars(config.cache_config) | blocks
        transfer = config.kv_transfer_config
        return cls(
            limits.max_model_len,
            settings,
            num_spec_tokens=limits.num_speculative_tokens,
            max_loras=limits.max_loras,
            keeps_prompt_ends=config.cache_config.prefix_cache_retention_interval == 0
            and any(config.model_config.sliding_windows)
            and not limits.disable_hybrid_kv_cache_manager,
            fetches=transfer is not None and transfer.is_kv_consumer,
        )

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Count a step."""
        self.scheduler = scheduler
        if self.spec_decoding is not None and scheduler.spec_decoding_stats is not None:
            self.spec_decoding.add(scheduler.spec_decoding_stats)
        self.num_prompt_tokens += iteration.num_prompt_tokens
        self.num_cached_tokens += iteration.num_cached_tokens
        self.num_external_tokens += iteration.num_external_tokens
        self.num_generation_tokens += iteration.num_generation_tokens
        computed = iteration.num_prompt_tokens - iteration.num_cached_tokens
        histograms = self.histograms
        num_tokens = computed + iteration.num_generation_tokens
        histograms["iteration_tokens_total"].observe(num_tokens)
        for seconds in iteration.time_to_first_tokens:
            histograms["time_to_first_token_seconds"].observe(seconds)
        for seconds in iteration.inter_token_latencies:
            histograms["inter_token_latency_seconds"].observe(seconds)
        for request in iteration.finished_requests:
            self._record_finished(request)

    def _record_finished(self, request: FinishedRequestStats) -> None:
        self.finished[request.finish_reason] += 1
        for name, (_, field) in _HISTOGRAMS.items():
            if field is not None and (value := getattr(request, field)) is not None:
                self.histograms[name].observe(value)

    def read(self, **labels: str) -> list[Metric]:
        """Current values of all metrics, each with these labels, such as ``model_name``."""
        now = self.scheduler
        gauges = {
            "num_requests_running": now.num_running_reqs,
            "num_requests_waiting": now.num_waiting_reqs,
            "num_requests_swapped": now.num_swapped_reqs,  # 0.6.6's name; 0.32 swaps nothing
            "kv_cache_usage_perc": now.kv_cache_usage,
            "cpu_cache_usage_perc": now.cpu_cache_usage,  # 0.6.6's, too
        }
        counters = {
            "prompt_tokens": self.num_prompt_tokens,
            "prompt_tokens_cached": self.num_cached_tokens,
            "generation_tokens": self.num_generation_tokens,
            "num_preemptions": now.num_preemptions,
            "prefix_cache_queries": now.prefix_cache_queries,
            "prefix_cache_hits": now.prefix_cache_hits,
            "external_prefix_cache_queries": now.external_prefix_cache_queries,
            "external_prefix_cache_hits": now.external_prefix_cache_hits,
        }
        if self.processor_cache is not None:
            counters["mm_cache_queries"] = self.processor_cache.num_queries
            counters["mm_cache_hits"] = self.processor_cache.num_hits
        if self.spec_decoding is not None:
            counters |= self.spec_decoding.counters
        of_the_cache = {name: value for name, value in labels.items() if name != "model_name"}
        metrics: list[Metric] = [
            *(Gauge(f"vllm:{name}", labels, value) for name, value in gauges.items()),
            Gauge("vllm:cache_config_info", of_the_cache | self.cache_config, 1),
            *(Counter(f"vllm:{name}", labels, value) for name, value in counters.items()),
        ]
        if self.spec_decoding is not None:
            accepted = self.spec_decoding.num_accepted_tokens_per_pos
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            metrics.append(Vector(name, labels, list(accepted)))
        if self.max_loras:
            metrics.append(self._lora_requests_info())
        if self.fetches:
            for stage in KV_FETCH_STAGES:
                number = now.num_kv_fetch_reqs_by_stage.get(stage, 0)
                name = "vllm:num_requests_kv_fetch_by_stage"
                metrics.append(Gauge(name, labels | {"stage": stage}, number))
        computed = self.num_prompt_tokens - self.num_cached_tokens
        by_label = {
            ("request_success", "finished_reason"): self.finished,
            ("prompt_tokens_by_source", "source"): {
                "local_compute": computed,
                "local_cache_hit": self.num_cached_tokens - self.num_external_tokens,
                "external_kv_transfer": self.num_external_tokens,
            },
            ("prompt_tokens_cached_by_source", "source"): {
                "device": now.prefix_cache_hits, "host": 0, "p2p": 0, "disk": 0,
                "external_unspecified": now.external_prefix_cache_hits,
            },
        }  # fmt: skip
        for (name, label), counts in by_label.items():
            for value, count in counts.items():
                metrics.append(Counter(f"vllm:{name}", labels | {label: value}, count))
        for name, filled in self.histograms.items():
            buckets = filled.cumulative()
            metrics.append(
                Histogram(
                    f"vllm:{name}",
                    labels,
                    count=buckets["+Inf"],
                    sum=filled.sum,
                    buckets=buckets,
                )
            )
        return metrics

    def _lora_requests_info(self) -> Gauge:
        """The adapters that have requests, as labels; the value is the time, as in vLLM."""
        labels = {
            "max_lora": str(self.max_loras),
            "waiting_lora_adapters": ",".join(self.scheduler.waiting_lora_adapters),
            "running_lora_adapters": ",".join(self.scheduler.running_lora_adapters),
        }
        return Gauge("vllm:lora_requests_info", labels, time.time())
