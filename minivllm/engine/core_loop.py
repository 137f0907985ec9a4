"""EngineCoreLoop: runs the engine's steps in a thread or process (vLLM: EngineCoreProc).

The engine belongs to one thread, of this process or of another, and everything reaches it as a
message. Between two steps it takes all that have come; only an idle engine waits for one.
(vLLM: vllm/v1/engine/core.py, ``run_busy_loop``)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minivllm.records import Record
from minivllm.scheduling.progress import LivelockError
from minivllm.trace import Trace

if TYPE_CHECKING:
    from minivllm.engine.llm_engine import LLMEngine

STOP = ("stop",)  # the message that ends the loop
TRACE_STEPS = 1000  # the last ones, which a trace keeps that nobody follows
# A policy may wait for time to pass, or for company. In the meantime it is asked every 10 ms.
_PATIENCE, _ASK_AGAIN = 1.0, 0.01  # seconds


@dataclass
class Batch:
    """Outputs of one turn of the loop, sent as one message: it wakes the reader once."""

    outputs: list = field(default_factory=list)
    refused: list[tuple[str, Exception]] = field(default_factory=list)  # by request id
    results: list[tuple[int, Any]] = field(default_factory=list)  # of calls, by number
    num_running: int = 0
    num_waiting: int = 0
    records: list[Record] = field(default_factory=list)  # of the trace, if somebody follows it


class EngineCoreLoop:
    """Messages in, steps, batches out.

    Messages are tuples: ``("add", request)``, ``("abort", request_ids)``, ``("pause",)``,
    ``("resume", num_steps)``, ``("follow",)`` (from now on batches bring the trace's records),
    ``("call", number, method, arguments)`` and ``STOP``.

    Args:
        core: the engine; it is used by ``run`` alone.
        receive: returns the messages that are there. It waits for the first one, but no longer
            than so many seconds; None is as long as it takes.
        send: takes a ``Batch``.
    """

    def __init__(
        self,
        core: LLMEngine,
        receive: Callable[[float | None], list[tuple]],
        send: Callable[[Batch], None],
    ):
        self.core = core
        self._receive = receive
        self._send = send
        self._paused = False
        self._steps_left: int | None = None  # until it pauses again; None: until it is told to
        self._stuck_since: float | None = None  # when the policy began to admit nobody
        self._trace: Trace | None = None  # whose records go into the batches

    def run(self) -> None:
        """Run until ``STOP`` comes, or an exception ends it, which the caller handles.

        Raises:
            AssertionError: if the books do not balance in the end.
        """
        while True:
            batch = Batch()
            for message in self._receive(self._seconds_to_wait()):
                if message == STOP:
                    return self.core.check_integrity()
                getattr(self, f"_on_{message[0]}")(batch, *message[1:])
            if self._has_work():
                self._step(batch)
            if self._steps_left is not None and not self._has_work():
                self._on_pause(batch)  # all steps asked for are taken, or nothing is left to do
            if self._trace is not None:
                batch.records = self._trace.take()
            batch.num_running, batch.num_waiting = self.core.num_running_and_waiting()
            self._send(batch)

    def _has_work(self) -> bool:
        may_step = not self._paused and self._steps_left != 0
        return may_step and self.core.has_unfinished_requests()

    def _seconds_to_wait(self) -> float | None:
        if not self._has_work():
            return None
        return 0 if self._stuck_since is None else _ASK_AGAIN

    def _step(self, batch: Batch) -> None:
        """Run a step. If no step has done anything for a second, waiting requests are refused."""
        trace = self.core.trace
        if trace is not None and self._trace is None:  # nobody takes its records
            trace.forget_before(trace.num_steps - TRACE_STEPS)
        if self._steps_left is not None:
            self._steps_left -= 1
        try:
            batch.outputs += self.core.make_progress()
            self._stuck_since = None
        except LivelockError as error:
            now = time.monotonic()
            self._stuck_since = now if self._stuck_since is None else self._stuck_since
            if now - self._stuck_since >= _PATIENCE:
                self._stuck_since = None
                waiting = list(self.core.scheduler.requests)
                self.core.abort_request(waiting)
                batch.refused += [(request_id, error) for request_id in waiting]

    def _on_add(self, batch: Batch, request) -> None:
        try:
            self.core.submit(request)
        except ValueError as error:
            batch.refused.append((request.request_id, error))

    def _on_abort(self, batch: Batch, request_ids: list[str]) -> None:
        batch.outputs += self.core.abort_request(request_ids)

    def _on_pause(self, batch: Batch) -> None:
        self._paused, self._steps_left, self._stuck_since = True, None, None

    def _on_resume(self, batch: Batch, num_steps: int | None = None) -> None:
        self._paused = False
        self._steps_left = None if num_steps is None else (self._steps_left or 0) + num_steps

    def _on_follow(self, batch: Batch) -> None:
        self._trace = self.core.trace

    def _on_call(self, batch: Batch, number: int, method: str, arguments: tuple) -> None:
        try:
            batch.results.append((number, getattr(self.core, method)(*arguments)))
        except Exception as error:  # the caller's business, not the engine's
            batch.results.append((number, error))
