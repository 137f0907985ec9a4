"""Executor: runs the engine core's calls on its workers, in this process or in others.

(vLLM: vllm/v1/executor/abstract.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from minivllm.config import VllmConfig
from minivllm.kv.kv_cache_config import KVCacheConfig
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Calls the same method of every worker, which are made from the config."""

    def __init__(self, config: VllmConfig):
        self.config = config
        self._init_executor()

    @abstractmethod
    def _init_executor(self) -> None:
        """Make the workers, with their devices and models."""

    @abstractmethod
    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker; returns a list of their results."""

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: the least of what the workers have free."""
        return min(self.collective_rpc("determine_available_memory"))

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Let every worker allocate its KV cache and capture its CUDA graphs."""
        self.collective_rpc("initialize_from_config", kv_cache_config)
        self.collective_rpc("compile_or_warm_up_model")

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step. All workers compute the same tokens; the first one's are taken."""
        return self.collective_rpc("execute_model", scheduler_output)[0]
