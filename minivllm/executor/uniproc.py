"""UniProcExecutor: one worker, in this process. (vLLM: vllm/v1/executor/uniproc_executor.py)"""

from __future__ import annotations

from typing import Any

from minivllm.executor.abstract import Executor
from minivllm.worker.worker import Worker


class UniProcExecutor(Executor):
    """Calls its one worker directly."""

    def _init_executor(self) -> None:
        self.worker = Worker(self.config)
        self.worker.init_device()
        self.worker.load_model()

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return [getattr(self.worker, method)(*args)]
