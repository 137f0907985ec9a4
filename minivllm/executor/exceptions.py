"""EngineDeadError: the error of an engine that has stopped.

(vLLM: vllm/v1/engine/exceptions.py)
"""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """The engine has stopped: a step failed, or its process is gone. No request will finish."""

    def __init__(self, cause: BaseException | str):
        super().__init__(f"the engine has stopped and takes no more requests: {cause!r}")
