"""EngineCoreLoop: who turns the crank when nobody waits for a step (vLLM: EngineCoreProc).

The engine belongs to one thread, of this process or of another, and everything reaches it as a
message. Between two steps it takes all that have come; only an idle engine waits for one.
(vLLM: vllm/v1/engine/core.py, ``run_busy_loop``)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minivllm.records import Record
from minivllm.trace import Trace

if TYPE_CHECKING:
    from minivllm.engine.llm_engine import LLMEngine

STOP = ("stop",)  # the message that ends the loop


@dataclass
class Batch:
    """What one turn of the loop has to say; it is sent as a whole, so it wakes the reader once."""

    outputs: list = field(default_factory=list)
    refused: list[tuple[str, Exception]] = field(default_factory=list)  # by request id
    results: list[tuple[int, Any]] = field(default_factory=list)  # of calls, by number
    num_running: int = 0
    num_waiting: int = 0
    records: list[Record] = field(default_factory=list)  # of the trace, if somebody follows it


class EngineCoreLoop:
    """Messages in, steps, batches out.

    Messages are tuples: ``("add", request)``, ``("abort", request_ids)``, ``("pause",)``,
    ``("step",)`` (one, though paused), ``("resume",)``, ``("follow",)`` (from now on batches bring
    the trace's records), ``("call", number, method, arguments)`` and ``STOP``.

    Args:
        core: the engine; it is used by ``run`` alone.
        receive: returns the messages that are there; given True, waits until there is one.
        send: takes a ``Batch``.
    """

    def __init__(
        self, core: LLMEngine, receive: Callable[[bool], list[tuple]], send: Callable[[Batch], None]
    ):
        self.core = core
        self._receive = receive
        self._send = send
        self._paused = False
        self._steps_asked_for = 0  # while paused
        self._trace: Trace | None = None  # whose records go into the batches

    def run(self) -> None:
        """Until ``STOP`` comes. What escapes a step ends it, too: the caller tells the world."""
        while True:
            batch = Batch()
            for message in self._receive(not self._has_work()):
                if message == STOP:
                    return
                getattr(self, f"_on_{message[0]}")(batch, *message[1:])
            if self._has_work():
                self._steps_asked_for -= self._paused
                batch.outputs += self.core.step()
            if not self.core.has_unfinished_requests():
                self._steps_asked_for = 0
            if self._trace is not None:
                batch.records = self._trace.take()
            batch.num_running, batch.num_waiting = self.core.num_running_and_waiting()
            self._send(batch)

    def _has_work(self) -> bool:
        may_step = not self._paused or self._steps_asked_for > 0
        return may_step and self.core.has_unfinished_requests()

    def _on_add(self, batch: Batch, request) -> None:
        try:
            self.core.submit(request)
        except ValueError as error:
            batch.refused.append((request.request_id, error))

    def _on_abort(self, batch: Batch, request_ids: list[str]) -> None:
        batch.outputs += self.core.abort_request(request_ids)

    def _on_pause(self, batch: Batch) -> None:
        self._paused = True

    def _on_step(self, batch: Batch) -> None:
        self._steps_asked_for += self._paused

    def _on_resume(self, batch: Batch) -> None:
        self._paused = False
        self._steps_asked_for = 0

    def _on_follow(self, batch: Batch) -> None:
        self._trace = self.core.trace

    def _on_call(self, batch: Batch, number: int, method: str, arguments: tuple) -> None:
        try:
            batch.results.append((number, getattr(self.core, method)(*arguments)))
        except Exception as error:  # the caller's business, not the engine's
            batch.results.append((number, error))
