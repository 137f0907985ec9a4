"""UniProcExecutor: one worker, in this process. (vLLM: vllm/v1/executor/uniproc_executor.py)"""

from __future__ import annotations

from functools import partial
from typing import Any

from minivllm.executor.abstract import Executor
from minivllm.executor.futures import completed
from minivllm.worker.worker import Worker


class UniProcExecutor(Executor):
    """Calls its one worker directly."""

    def _init_executor(self) -> None:
        self.worker = self._make_worker()
        self.worker.init_device()
        self.worker.load_model()

    def _make_worker(self) -> Worker:
        return Worker(self.config)

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
        return [getattr(self.worker, method)(*args, **kwargs or {})]

    def shutdown(self) -> None:
        super().shutdown()
        vars(self).pop("worker", None)  # its weights and KV cache with it
