"""Trace: the engine's event log, its records, and the state that they lead to."""

from minivllm.trace.trace import Trace

__all__ = ["Trace"]
