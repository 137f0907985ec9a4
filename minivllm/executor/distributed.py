"""DistributedExecutor: what executors share whose ranks have processes of their own.

(vLLM 0.6.6: vllm/executor/distributed_gpu_executor.py)
"""

from __future__ import annotations

import pickle
import threading
from abc import abstractmethod
from dataclasses import replace
from typing import Any

from minivllm.config import VllmConfig
from minivllm.executor.abstract import Executor
from minivllm.executor.exceptions import EngineDeadError, RankTraceback
from minivllm.executor.rank_process import name_of
from minivllm.logger import init_logger
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams

logger = init_logger(__name__)

_timings: dict[object, object] = {}  # see ``Worker.load_model``; ranks started later get them


class DistributedExecutor(Executor):
    """Decides what the replies of ranks mean, and ends all ranks when one of them has ended."""

    def _init_executor(self) -> None:
        parallel = self.config.parallel_config
        self._names = [name_of(rank, parallel) for rank in range(parallel.world_size)]
        self._lock = threading.Lock()

    def _load_model(self) -> None:
        for timings in self.collective_rpc("load_model", args=(_timings,)):
            _timings.update(timings)

    def check_request(self, request: Request) -> None:
        super().check_request(request)
        params = request.sampling_params
        if type(params) is SamplingParams and not params.logits_processors:
            return  # all that is in it has a place in the package
        if params is not None:
            try:
                self.collective_rpc("check_params", args=(params,))
            except (EngineDeadError, ValueError):
                raise
            except Exception as error:
                raise ValueError(f"ranks cannot read sampling_params: {error}") from error

    @abstractmethod
    def _kill(self) -> None:
        """End all ranks, without waiting for them."""

    def _results(self, replies: dict[int, tuple]) -> list[Any]:
        """Results of a call, in order of ranks. Raises as ``collective_rpc`` does.

        Args:
            replies: those that have come, by rank; see ``rank_process.answer``.
        """
        failed = sorted(rank for rank, reply in replies.items() if not reply[0])
        if not failed:
            return [replies[rank][1] for rank in range(len(self._names))]
        first = failed[0]
        _, error, text = replies[first]
        if len(replies) == len(self._names) and self._are_whole_stages(failed):
            names = ", ".join(self._names[rank] for rank in failed)
            raise error from RankTraceback(f"raised by {names}; by the first of them:\n{text}")
        raise self._fail(f"{self._names[first]} failed with {error!r}, and others did not:\n{text}")

    def _fail(self, reason: str) -> EngineDeadError:
        """End all ranks after the first reason to; returns the error that holds it."""
        with self._lock:
            first = self._dead is None
            if self._dead is None:
                self._dead = EngineDeadError(reason)
        if first:
            logger.error("%s; the other ranks are ended.", reason)
            self._kill()
            if self._on_failure is not None:
                self._on_failure(self._dead)
        return self._dead


def for_ranks(config: VllmConfig) -> VllmConfig:
    """The config without objects that only the engine uses, and that may not be picklable."""
    return replace(
        config,
        scheduler_config=replace(config.scheduler_config, policy="fcfs"),
        cache_config=replace(config.cache_config, kv_cache_manager_cls=None),
        parallel_config=replace(config.parallel_config, distributed_executor_backend=None),
    )


def pickled(call: tuple) -> bytes:
    """A call to ranks as bytes. Raises ``ValueError`` if it cannot be pickled."""
    try:
        return pickle.dumps(call)
    except Exception as error:
        raise ValueError(f"this cannot be sent to a rank: {error}") from error
