"""TogetherExecutor: all ranks in this process, one at a time up to its next collective operation.

For tests and for looking: a run is the same every time, and the tensors of all ranks are in reach.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from minivllm.config.parallel import ParallelConfig
from minivllm.distributed.group import Group, ParallelState
from minivllm.distributed.in_process import Mailbox, PeerError, TogetherGroup, Turns
from minivllm.distributed.shard import pp_ranks, tp_ranks
from minivllm.executor.abstract import Executor
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.futures import completed
from minivllm.executor.rank_process import name_of
from minivllm.worker.traced_worker import make_worker


class TogetherExecutor(Executor):
    """Runs its ranks in threads that take turns. ``workers`` are those of all ranks."""

    def _init_executor(self) -> None:
        parallel = self.config.parallel_config
        self._names = [name_of(rank, parallel) for rank in range(parallel.world_size)]
        self._turns = Turns(parallel.world_size)
        self.states = join_together(parallel, self._turns)
        # a thread per rank: OpenMP's threads belong to the one that has loaded the model
        self._threads = [ThreadPoolExecutor(1, name) for name in self._names]
        self.workers = [make_worker(self.config, state) for state in self.states]
        try:
            self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self.shutdown()
            raise

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        if non_block:
            return completed(partial(self.collective_rpc, method, timeout, args, kwargs))
        self.check_health()
        self._turns.begin()
        calls = [partial(getattr(w, method), *args, **kwargs or {}) for w in self.workers]
        futures = [
            thread.submit(self._run, rank, call)
            for rank, (thread, call) in enumerate(zip(self._threads, calls, strict=True))
        ]
        return self._results([_outcome(future) for future in futures])

    def _run(self, rank: int, call: Callable[[], Any]) -> Any:
        self._turns.take(rank)
        try:
            return call()
        finally:
            self._turns.end(rank)

    def _results(self, outcomes: list[tuple[Any, BaseException | None]]) -> list[Any]:
        errors = {r: e for r, (_, e) in enumerate(outcomes) if e is not None}
        if not errors:
            return [value for value, _ in outcomes]
        for state in self.states:
            for group in (state.tp, state.pp):
                if isinstance(group, TogetherGroup):
                    group.reset()
        causes = {r: e for r, e in errors.items() if not isinstance(e, PeerError)} or errors
        rank, error = next(iter(causes.items()))
        if causes == errors and self._are_whole_stages(errors):
            raise error
        text = "".join(traceback.format_exception(error))
        self._dead = EngineDeadError(
            f"{self._names[rank]} failed with {error!r}, and others did not:\n{text}"
        )
        raise self._dead

    def shutdown(self) -> None:
        super().shutdown()
        for thread in self._threads:
            thread.shutdown()
        self.workers = []


def join_together(parallel: ParallelConfig, turns: Turns) -> list[ParallelState]:
    """Make the groups of all ranks."""
    pp_size = parallel.pipeline_parallel_size
    tp_size = parallel.tensor_parallel_size
    boxes: dict[tuple[int, ...], Mailbox] = {}
    states = []
    for rank in range(parallel.world_size):
        groups: dict[str, Group] = {}
        for kind, members in (("tp", tp_ranks), ("pp", pp_ranks)):
            ranks = tuple(members(rank, pp_size, tp_size))
            if len(ranks) > 1:
                box = boxes.setdefault(ranks, Mailbox())
                groups[kind] = TogetherGroup(
                    ranks.index(rank), len(ranks), turns=turns, world_rank=rank, mailbox=box
                )
        states.append(ParallelState(rank, **groups))
    return states


def _outcome(future: Future) -> tuple[Any, BaseException | None]:
    """A call's result or error. Also after Ctrl-C it is waited for: the thread computes on."""
    interrupted = None
    while True:
        try:
            error = future.exception()
            value = None if error is not None else future.result()
            break
        except KeyboardInterrupt as stop:
            interrupted = stop
    return value, interrupted or error
