"""Replicas: several engine cores, in processes of their own, behind one front end.

Each has the whole model and serves its own requests: nothing is computed together. A request goes
to the engine with the least to do. (vLLM: ``DPLBAsyncMPClient`` in vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from functools import partial
from typing import Any

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core_client import CoreClient, OnError, OnOutputs
from minivllm.engine.core_loop import STOP
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.process_client import ProcessClient
from minivllm.executor.exceptions import EngineDeadError
from minivllm.request import Request
from minivllm.scheduling.load_balancer import LoadBalancer
from minivllm.utils.validation import check


class Replicas(CoreClient):
    """``data_parallel_size`` engine cores. If one of them ends, all do.

    Calls are made on all of them, and answered when all have come back.

    Args:
        args, on_outputs, on_error: as for every client; outputs say which engine they are of.

    Raises:
        ValueError: with a trace, which is of one engine.
    """

    def __init__(self, args: EngineArgs, on_outputs: OnOutputs, on_error: OnError):
        check(not args.trace, "trace", True, "False with several engines: a trace is of one")
        self._on_outputs = on_outputs
        self._on_error = on_error
        self._lock = threading.Lock()  # one thread for each engine comes here
        self._calls: dict[int, str] = {}  # their methods, by number
        self._answers: dict[int, dict[int, Any]] = defaultdict(dict)  # so far, by number and engine
        self._has_failed = False
        self.load_balancer = LoadBalancer(args.data_parallel_size)
        self.clients: list[ProcessClient] = []
        try:
            for rank in range(args.data_parallel_size):  # all start before one is waited for
                on_end = partial(self._end, rank)
                client = ProcessClient(args, partial(self._receive, rank), on_end, rank)
                self.clients.append(client)
        except BaseException:
            self.shutdown(timeout=0)
            raise

    def wait_until_ready(self) -> None:
        try:
            for client in self.clients:
                client.wait_until_ready()
        except BaseException:
            self.shutdown(timeout=0)
            raise
        first = self.clients[0]
        self.vllm_config = first.vllm_config
        self.kv_cache_config = first.kv_cache_config

    def get_input_processor(self) -> InputProcessor:
        return self.clients[0].get_input_processor()

    def add(self, request: Request, data_parallel_rank: int | None = None) -> None:
        with self._lock:
            rank = self.load_balancer.choose(request.request_id, data_parallel_rank)
        try:
            self.clients[rank].add(request)
        except ValueError:
            with self._lock:
                self.load_balancer.finish([request.request_id])
            raise

    def submit(self, message: tuple) -> None:
        kind, *values = message
        if kind in ("abort", "stop_sequences"):  # each engine hears of its own requests
            listed = list(values[0])
            owners = [self._engine_of(one if kind == "abort" else one[0]) for one in listed]
            for rank, client in enumerate(self.clients):
                if own := [one for i, one in enumerate(listed) if owners[i] == rank]:
                    client.submit((kind, own))
        else:
            if kind == "call":
                self._calls[values[0]] = values[1]
            for client in self.clients:
                client.submit(message)

    def shutdown(self, timeout: float = 10.0) -> None:
        until = time.monotonic() + timeout
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.shutdown(max(0, until - time.monotonic()))

    def _engine_of(self, request_id: str) -> int:
        """The engine to tell of a request. Any one ignores, and confirms, one that has ended."""
        with self._lock:
            return self.load_balancer.engine_of(request_id) or 0

    def _receive(self, rank: int, outputs: EngineCoreOutputs) -> None:
        """Take an engine's outputs of a turn. Called from its thread."""
        outputs.engine_index = rank
        with self._lock:
            if outputs.scheduler_stats is not None:
                self.load_balancer.update(rank, outputs.scheduler_stats)
            self.load_balancer.finish(outputs.finished_requests)
            answered = []
            for number, value in outputs.utility_outputs:
                self._answers[number][rank] = value
                if len(self._answers[number]) == len(self.clients):
                    values = self._answers.pop(number)
                    in_order = [values[i] for i in sorted(values)]
                    answered.append((number, _joined(self._calls.pop(number, ""), in_order)))
            outputs.utility_outputs = answered
            self._on_outputs(outputs)  # in this order: an answer comes behind what led to it

    def _end(self, rank: int, error: BaseException) -> None:
        """Stop all engines after the end of one. Called from its thread."""
        with self._lock:
            if self._has_failed:
                return
            self._has_failed = True
        cause = error.cause if isinstance(error, EngineDeadError) else repr(error)
        self._on_error(EngineDeadError(f"engine {rank}: {cause}"))
        for client in self.clients:
            client.submit(STOP)


def _joined(method: str, values: list[Any]) -> Any:
    """Join the engines' answers to one call; the first error counts.

    An adapter is loaded where its requests are. So engines have different ones, and one that any of
    them had is gone when it is removed.
    """
    errors = [value for value in values if isinstance(value, Exception)]
    if errors:
        return errors[0]
    if isinstance(values[0], set):
        return {each for value in values for each in value}
    if isinstance(values[0], bool):
        return all(values) if method == "reset_prefix_cache" else any(values)
    return values[0]
