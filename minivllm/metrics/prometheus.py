"""Prometheus registry of an engine's metrics. (vLLM: vllm/v1/metrics/prometheus.py)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from minivllm.metrics.reader import Counter, Gauge, Histogram, Metric, Vector

_HELP = {
    "vllm:admission_rejections": "Requests that a limit of their number refused.",
    "vllm:cache_config_info": "Settings of the KV cache, as labels.",
    "vllm:cpu_cache_usage_perc": "Share of the host's blocks in use; 1 is all.",
    "vllm:e2e_request_latency_seconds": "From a request's arrival to its end.",
    "vllm:external_prefix_cache_hits": "Tokens whose K and V a KV connector had.",
    "vllm:external_prefix_cache_queries": "Tokens that a KV connector was asked for.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:inter_token_latency_seconds": "Between two tokens of a sequence.",
    "vllm:iteration_tokens_total": "Tokens of a step: computed of prompts, and generated.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache's blocks in use; 1 is all.",
    "vllm:lora_requests_info": "When these adapters had requests that run, and that wait.",
    "vllm:num_preemptions": "Requests that were preempted.",
    "vllm:num_requests_kv_fetch_by_stage": "Requests that wait for K and V from elsewhere.",
    "vllm:num_requests_running": "Requests that run.",
    "vllm:num_requests_swapped": "Requests that wait on the host.",
    "vllm:num_requests_waiting": "Requests that wait.",
    "vllm:prefix_cache_hits": "Tokens that the prefix cache had.",
    "vllm:mm_cache_queries": "Pictures and sounds that were looked for in the processor cache.",
    "vllm:mm_cache_hits": "Those that were found there.",
    "vllm:prefix_cache_queries": "Tokens that were looked for in the prefix cache.",
    "vllm:prompt_tokens": "Tokens of prompts that were computed or found.",
    "vllm:prompt_tokens_by_source": "Tokens of prompts: computed, cached, sent by others.",
    "vllm:prompt_tokens_cached": "Tokens of prompts that were not computed here.",
    "vllm:prompt_tokens_cached_by_source": "Those found when requests were admitted, by place.",
    "vllm:request_decode_time_seconds": "From a request's first token to its last.",
    "vllm:request_generation_tokens": "Tokens that a request generated.",
    "vllm:request_inference_time_seconds": "From a request's first scheduling to its last token.",
    "vllm:request_max_num_generation_tokens": "Tokens of a request's longest sample.",
    "vllm:request_num_preemptions": "How often a request had to give way.",
    "vllm:request_params_max_tokens": "max_tokens of requests.",
    "vllm:request_params_n": "n of requests.",
    "vllm:request_prefill_kv_computed_tokens": "Tokens of a prompt that the cache had not.",
    "vllm:request_prefill_time_seconds": "From a request's first scheduling to its first token.",
    "vllm:request_prompt_tokens": "Tokens of a request's prompt.",
    "vllm:request_queue_time_seconds": "From a request's arrival to its first scheduling.",
    "vllm:request_success": "Requests that came to an end.",
    "vllm:request_time_per_output_token_seconds": "A request's mean time a token, but the first.",
    "vllm:spec_decode_num_accepted_tokens": "Drafts that were right.",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "The same, by their place among the drafts.",
    "vllm:spec_decode_num_draft_tokens": "Drafts that were verified.",
    "vllm:spec_decode_num_drafts": "Sequences with drafts, once per step.",
    "vllm:time_to_first_token_seconds": "From a request's arrival to its first token.",
}

_KINDS: dict[type[Metric], type] = {
    Counter: CounterMetricFamily,
    Gauge: GaugeMetricFamily,
    Histogram: HistogramMetricFamily,
    Vector: CounterMetricFamily,
}


class _EngineCollector(Collector):
    """Collector that reads the metrics at each scrape."""

    def __init__(self, read: Callable[[], list[Metric]]):
        self._read = read

    def collect(self) -> Iterator[Family]:
        families: dict[str, Any] = {}
        for metric in self._read():
            names = list(metric.labels)
            values = list(metric.labels.values())
            if metric.name not in families:
                names += ["position"] * isinstance(metric, Vector)
                kind = _KINDS[type(metric)]
                families[metric.name] = kind(metric.name, _HELP[metric.name], labels=names)
            family = families[metric.name]
            if isinstance(metric, Histogram):
                family.add_metric(values, list(metric.buckets.items()), metric.sum)
            elif isinstance(metric, Vector):
                for position, count in enumerate(metric.values):
                    family.add_metric([*values, str(position)], count)
            elif isinstance(metric, (Counter, Gauge)):
                family.add_metric(values, metric.value)
        yield from families.values()


def make_registry(read: Callable[[], list[Metric]]) -> CollectorRegistry:
    """Make a registry of the metrics of the process, of Python and of an engine (``read``)."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(_EngineCollector(read))
    return registry
