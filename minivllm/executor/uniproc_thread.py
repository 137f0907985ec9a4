"""UniProcThreadExecutor: one worker, in a thread of its own.

While it computes a step, the engine's thread plans the next one. Planning is Python, and loops of
torch and numba run without the interpreter's lock; so they overlap, but for the lock's hand-over.
(In vLLM the GPU computes by itself; a CPU's worker has a process.)
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from minivllm.distributed.group import ParallelState
from minivllm.executor.uniproc import UniProcExecutor
from minivllm.worker.traced_worker import make_worker
from minivllm.worker.worker import Worker


class UniProcThreadExecutor(UniProcExecutor):
    """Calls its one worker in a thread, in the order of the calls.

    The thread makes the worker, too: OpenMP's threads belong to the one that has loaded the model.
    """

    def _init_executor(self) -> None:
        self._thread = ThreadPoolExecutor(1, "minivllm-worker")
        self._thread.submit(super()._init_executor).result()

    def _make_worker(self) -> Worker:
        return make_worker(self.config, ParallelState())

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        call = partial(super().collective_rpc, method, timeout, args, kwargs)
        future: Future = self._thread.submit(call)
        return future if non_block else future.result(timeout)

    def shutdown(self) -> None:
        self._thread.shutdown()  # what it was given is computed first
        super().shutdown()
