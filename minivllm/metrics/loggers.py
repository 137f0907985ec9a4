"""LoggingStatLogger: vLLM's line of throughput and queues in the log, every few seconds.

(vLLM: vllm/v1/metrics/loggers.py)
"""

from __future__ import annotations

import time

from minivllm import envs
from minivllm.logger import init_logger
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.metrics.stats import KV_FETCH_STAGES

logger = init_logger(__name__)

# beside a hit rate, where windows are told to keep nothing else (retention interval 0)
WINDOWS_KEEP_ENDS = "windows keep only the ends of prompts"


class LoggingStatLogger:
    """Logger of rates and gauges at intervals, from the counters in ``metrics``.

    Args:
        metrics: of one engine.
        prefix: says which one, if there are several.
    """

    def __init__(self, metrics: EngineMetrics, prefix: str = ""):
        self.metrics = metrics
        self.prefix = prefix
        self.interval = envs.log_stats_interval()  # seconds
        self._at_last_line = (time.monotonic(), 0, 0)
        self._drafts: SpecDecodingStats | None = None  # since the last line, if any

    def record(self) -> None:
        """Log if the interval has passed; called after each step."""
        drafts = self.metrics.scheduler.spec_decoding_stats
        if drafts is not None:
            self._drafts = self._drafts or SpecDecodingStats(drafts.num_spec_tokens)
            self._drafts.add(drafts)
        if time.monotonic() - self._at_last_line[0] >= self.interval:
            self.log()

    def log(self) -> None:
        """Log a line of rates since the last one and of current gauges, and one of drafts."""
        since, prompt, generation = self._at_last_line
        metrics = self.metrics
        now = time.monotonic()
        stats = self.metrics.scheduler
        self._at_last_line = (now, metrics.num_prompt_tokens, metrics.num_generation_tokens)
        seconds = max(now - since, 1e-9)
        prompt_rate = (metrics.num_prompt_tokens - prompt) / seconds
        generation_rate = (metrics.num_generation_tokens - generation) / seconds
        fetches = [stats.num_kv_fetch_reqs_by_stage.get(stage, 0) for stage in KV_FETCH_STAGES]
        num_fetched = fetches[1] + fetches[2]  # they wait beside the queue
        line = (
            f"Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
            f"Avg generation throughput: {generation_rate:.1f} tokens/s, "
            f"Running: {stats.num_running_reqs} reqs, "
            f"Waiting: {stats.num_waiting_reqs - stats.num_swapped_reqs - num_fetched} reqs, "
        )
        if num_fetched:
            line += f"Deferred: {num_fetched} reqs, "
        if any(fetches):
            line += (
                f"KV fetch: {fetches[0]} waiting to start, {fetches[1]} in progress, "
                f"{fetches[2]} completed waiting, "
            )
        line += f"GPU KV cache usage: {100 * stats.kv_cache_usage:.1f}%"
        if stats.num_swapped_reqs:
            line += f", Swapped: {stats.num_swapped_reqs} reqs"
            line += f", CPU KV cache usage: {100 * stats.cpu_cache_usage:.1f}%"
        if metrics.cache_config["enable_prefix_caching"] == "True":
            queries = stats.recent_prefix_cache_queries
            hits = stats.recent_prefix_cache_hits
            line += f", Prefix cache hit rate: {100 * hits / max(1, queries):.1f}%"
            line += f" ({WINDOWS_KEEP_ENDS})" if metrics.keeps_prompt_ends else ""
        if queries := stats.recent_external_prefix_cache_queries:
            hits = stats.recent_external_prefix_cache_hits
            line += f", External prefix cache hit rate: {100 * hits / queries:.1f}%"
        logger.info("%s%s", self.prefix, line)
        if self._drafts is not None:
            logger.info("%s%s", self.prefix, self._drafts.as_line(seconds))
            self._drafts = None


def make_stat_loggers(metrics: list[EngineMetrics]) -> list[LoggingStatLogger]:
    """Make a logger for each engine's metrics; its lines name the engine if there are several."""
    names = [f"Engine {i:03d}: " if len(metrics) > 1 else "" for i in range(len(metrics))]
    return [LoggingStatLogger(*one) for one in zip(metrics, names, strict=True)]
