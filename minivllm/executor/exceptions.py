"""EngineDeadError: the error of an engine that has stopped; RankTraceback: where a rank raised.

(vLLM: vllm/v1/engine/exceptions.py)
"""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """The engine has stopped: a step failed, or a process is gone. No request will finish."""

    def __init__(self, cause: BaseException | str):
        self.cause: BaseException | str = cause
        if isinstance(cause, EngineDeadError):
            self.cause = cause.cause
        text = self.cause if isinstance(self.cause, str) else repr(self.cause)
        super().__init__(f"the engine has stopped and takes no more requests: {text}")

    def __reduce__(self):
        return type(self), (self.cause,)  # it may come from the engine's process


class RankTraceback(Exception):
    """Text of a traceback in a rank's process: the cause of an error that is raised again here."""
