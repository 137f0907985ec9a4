"""Executor: runs the engine core's calls on its workers, in this process or in others.

(vLLM: vllm/v1/executor/abstract.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, Literal, overload

from minivllm.config import VllmConfig
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.futures import LazyFuture
from minivllm.kv.kv_cache_config import KVCacheConfig
from minivllm.kv.kv_cache_spec import KVCacheSpec
from minivllm.kv_transfer.base import KVOutputAggregator
from minivllm.request import Request
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput

_CLASSES = {
    "uni": "minivllm.executor.uniproc:UniProcExecutor",
    "uni in a thread": "minivllm.executor.uniproc_thread:UniProcThreadExecutor",
    "mp": "minivllm.executor.multiproc:MultiprocExecutor",
    "together": "minivllm.executor.in_process:TogetherExecutor",
    "ray": "minivllm.executor.ray:RayExecutor",
}


class Executor(ABC):
    """Calls the same method of every worker, which are made from the config.

    Raises:
        ValueError: from its constructor, if the workers cannot be made.
    """

    num_machines = 1  # that its ranks are on
    supports_async_scheduling = False  # True: takes a step before the one before it is done

    def __init__(self, config: VllmConfig):
        self.config = config
        rank = config.parallel_config.output_rank
        has_ranks = config.parallel_config.world_size > 1
        # makes one ModelRunnerOutput of a step of those of all ranks
        self._output_of: Callable[[list[ModelRunnerOutput]], ModelRunnerOutput] = itemgetter(rank)
        if has_ranks and config.observability_config.trace:
            self._output_of = partial(with_rank_work, rank)
        self._transfers: KVOutputAggregator | None = None  # of ranks that each move their own heads
        if has_ranks and config.kv_transfer_config is not None:
            self._transfers = KVOutputAggregator(config.parallel_config.world_size)
            self._output_of = partial(with_transfers, self._transfers, self._output_of)
        self._dead: EngineDeadError | None = None  # why no worker answers any more
        self._on_failure: Callable[[BaseException], None] | None = None
        self._init_executor()

    @staticmethod
    def get_class(config: VllmConfig) -> type[Executor]:
        """The class that ``distributed_executor_backend`` names."""
        backend = config.parallel_config.backend
        if isinstance(backend, type):
            return backend
        if backend == "uni" and config.scheduler_config.async_scheduling:
            backend = "uni in a thread"
        module, name = _CLASSES[backend].split(":")
        return getattr(import_module(module), name)

    @abstractmethod
    def _init_executor(self) -> None:
        """Make the workers, with their devices and models."""

    @abstractmethod
    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Call a method of every worker; returns a list of their results, in order of ranks.

        Args:
            method: its name.
            timeout: seconds to wait for all results; None: as long as it takes.
            args, kwargs: its arguments.
            non_block: return a Future of that list at once.

        Raises:
            Exception: as raised by all workers, or by all of a pipeline stage. None is broken then.
            EngineDeadError: if only some of a stage have raised it, or one has ended.
            TimeoutError: if results are late.
        """

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """The KVCacheSpec of each layer, by its name, of each worker."""
        return self.collective_rpc("get_kv_cache_spec")

    def determine_available_memory(self) -> list[int]:
        """Bytes for the KV cache, of each worker."""
        return self.collective_rpc("determine_available_memory")

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Let every worker allocate its KV cache and capture its CUDA graphs."""
        self.collective_rpc("initialize_from_config", args=(kv_cache_config,))
        self.collective_rpc("compile_or_warm_up_model")

    @overload
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput: ...

    @overload
    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: Literal[True]
    ) -> Future[ModelRunnerOutput]: ...

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """Compute one step; returns a ModelRunnerOutput: one worker's, since all have the same.

        With ``non_block`` it is a Future, and the next step may be given before it is done.
        """
        choose = self._output_of
        if self._transfers is not None and scheduler_output.reset:
            self._transfers.reset()
        outputs = self.collective_rpc(
            "execute_model", args=(scheduler_output,), non_block=non_block
        )
        if non_block:
            return LazyFuture(lambda wait: choose(outputs.result(wait)))
        return choose(outputs)

    def _are_whole_stages(self, ranks: Collection[int]) -> bool:
        """True for ranks that share all their layers with each other: none is left of a stage.

        If they have failed and the others have answered, none waits for another one.
        """
        size = self.config.parallel_config.tensor_parallel_size
        firsts = {rank - rank % size for rank in ranks}
        return len(ranks) == len(firsts) * size

    def register_failure_callback(self, callback: Callable[[BaseException], None]) -> None:
        """Set what is called, from any thread, when a worker has ended by itself."""
        self._on_failure = callback

    def check_health(self) -> None:
        """Raise ``EngineDeadError`` if a worker has ended."""
        if self._dead is not None:
            raise self._dead

    def check_request(self, request: Request) -> None:
        """Check that workers can compute a request.

        Raises:
            ValueError: if it holds what they cannot read.
            EngineDeadError: if one of them has ended.
        """
        self.check_health()

    def shutdown(self) -> None:
        """End the workers. A second call does nothing."""
        self._dead = self._dead or EngineDeadError("it was shut down")


def with_rank_work(rank: int, outputs: list[ModelRunnerOutput]) -> ModelRunnerOutput:
    """Return one rank's output, with the work of all ranks for the trace."""
    outputs[rank].rank_work = [work for output in outputs for work in output.rank_work]
    return outputs[rank]


def with_transfers(
    transfers: KVOutputAggregator,
    choose: Callable[[list[ModelRunnerOutput]], ModelRunnerOutput],
    outputs: list[ModelRunnerOutput],
) -> ModelRunnerOutput:
    """Return one rank's output, with the transfers that have ended in all ranks."""
    ended = transfers.aggregate(output.kv_connector_output for output in outputs)
    output = choose(outputs)
    output.kv_connector_output = ended
    return output
