"""What a caller of an engine that runs by itself may have to catch.

(vLLM: vllm/v1/engine/exceptions.py)
"""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """A step has failed, or the engine's process is gone: nothing that waits will be finished."""

    def __init__(self, cause: BaseException | str):
        super().__init__(f"the engine has stopped and takes no more requests: {cause!r}")
