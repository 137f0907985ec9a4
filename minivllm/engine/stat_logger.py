"""What the engine is doing, every few seconds in the log.

The counting goes on whether anybody looks or not; the line is vLLM's.
(vLLM: vllm/v1/metrics/loggers.py, LoggingStatLogger)
"""

from __future__ import annotations

import time

from minivllm import envs
from minivllm.logger import init_logger
from minivllm.scheduling.scheduler import Scheduler
from minivllm.spec_decode.metrics import SpecDecodingStats

logger = init_logger(__name__)


class LoggingStatLogger:
    """Counts tokens in and out, and says now and then how many there were.

    Args:
        scheduler: who runs, who waits, and how full the cache is.
        enabled: False only counts.
    """

    def __init__(self, scheduler: Scheduler, enabled: bool):
        self.scheduler = scheduler
        self.enabled = enabled
        self.interval = envs.log_stats_interval()  # seconds
        self.num_prompt_tokens = 0  # since the engine began; a prompt counts when it is computed
        self.num_generation_tokens = 0
        self._at_last_line = (time.monotonic(), 0, 0)
        # since the engine began, and since the last line
        num_spec_tokens = scheduler.config.num_speculative_tokens
        self.spec_decoding = SpecDecodingStats(num_spec_tokens)
        self._recent_spec_decoding = SpecDecodingStats(num_spec_tokens)

    def record(self, num_prompt_tokens: int, num_generation_tokens: int) -> None:
        """Count a step's tokens, and what became of its drafts. Logs if it is time to."""
        stats = self.scheduler.spec_decoding_stats
        if stats is not None:
            self.spec_decoding.add(stats)
            self._recent_spec_decoding.add(stats)
        self.num_prompt_tokens += num_prompt_tokens
        self.num_generation_tokens += num_generation_tokens
        if self.enabled and time.monotonic() - self._at_last_line[0] >= self.interval:
            self.log()

    def log(self) -> None:
        """One line: rates since the last one, and how things stand. Another one for drafts."""
        since, prompt, generation = self._at_last_line
        now = time.monotonic()
        self._at_last_line = (now, self.num_prompt_tokens, self.num_generation_tokens)
        seconds = max(now - since, 1e-9)
        scheduler, manager = self.scheduler, self.scheduler.kv_manager
        line = (
            f"Avg prompt throughput: {(self.num_prompt_tokens - prompt) / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {(self.num_generation_tokens - generation) / seconds:.1f}"
            f" tokens/s, Running: {len({seq.request for seq in scheduler.running})} reqs, "
            f"Waiting: {len(scheduler.waiting)} reqs, "
            f"GPU KV cache usage: {100 * manager.usage:.1f}%"
        )
        if scheduler.swapped:
            line += f", Swapped: {len(scheduler.swapped)} reqs"
            line += f", CPU KV cache usage: {100 * manager.swap_space.usage:.1f}%"
        if manager.prefix_cache is not None:
            cache = manager.prefix_cache
            rate = cache.recent.hit_rate
            line += f", Prefix cache hit rate: {100 * rate:.1f}%"
        logger.info(line)
        if self._recent_spec_decoding.num_drafts:
            logger.info(self._recent_spec_decoding.as_line(seconds))
            self._recent_spec_decoding = SpecDecodingStats(self.spec_decoding.num_spec_tokens)
