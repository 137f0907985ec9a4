"""EngineCoreLoop: runs the steps of an engine core in a thread or process (vLLM: EngineCoreProc).

The core belongs to one thread, of this process or of another, and everything reaches it as a
message. Between two steps the loop reads all messages that have come; only an idle core waits for
one. (vLLM: vllm/v1/engine/core.py, ``run_busy_loop``)
(notebook 21)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from minivllm.engine.core import EngineCore
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.request import Request
from minivllm.scheduling.livelock import LivelockError, make_progress
from minivllm.trace import Trace

STOP = ("stop",)  # the message that ends the loop
TRACE_STEPS = 1000  # the last steps, which a trace keeps that is not followed
# A policy may wait for time to pass, or for another request. Meanwhile it is asked every 10 ms.
_PATIENCE = 1.0  # seconds until waiting requests are refused
_ASK_AGAIN = 0.01


class EngineCoreLoop:
    """Loop of messages in, a step, and one message of outputs out.

    Messages are tuples: ``("add", request)``, ``("abort", request_ids)``,
    ``("stop_sequences", sequences)``, ``("pause",)``, ``("resume", number, num_steps)``,
    ``("follow",)`` (from now on outputs bring the trace's records),
    ``("call", number, method, arguments)`` (a method of the core, or of a part: ``"loras.add"``),
    ``("refuse", kind, id or number, error)`` (in place of one that could not be read) and
    ``STOP``. A number is that of the answer.

    Args:
        core: the engine core; only ``run`` uses it.
        receive: returns the messages that have come. It waits for the first one, but no longer
            than the given number of seconds; None is as long as it takes.
        send: takes the ``EngineCoreOutputs`` of a turn: one message, which wakes its reader once.
    """

    def __init__(
        self,
        core: EngineCore,
        receive: Callable[[float | None], list[tuple]],
        send: Callable[[EngineCoreOutputs], None],
    ):
        self.core = core
        self._receive = receive
        self._send = send
        self._paused = False
        self._steps_left: int | None = None  # until it pauses again; None: until it is told to
        self._resumed: list[int] = []  # numbers of the messages that asked for these steps
        self._stuck_since: float | None = None  # when the policy began to admit no request
        self._trace: Trace | None = None  # its records go into the outputs

    def run(self) -> None:
        """Run until ``STOP`` comes, or an exception ends it, which the caller handles.

        Raises:
            AssertionError: if the core is not consistent in the end.
        """
        while True:
            outputs = EngineCoreOutputs()
            for message in self._receive(self._seconds_to_wait()):
                if message == STOP:
                    self._end_in_flight(outputs)
                    return self.core.check_integrity()
                getattr(self, f"_on_{message[0]}")(outputs, *message[1:])
            if self._has_work():
                self._step(outputs)
            if self._steps_left is not None and not self._has_work():
                self._on_pause(outputs)  # all steps asked for are taken, or nothing is left to do
            if self._trace is not None:
                outputs.records = self._trace.take()
            outputs.scheduler_stats = self.core.make_stats()
            outputs.finished_requests = self._ended_in(outputs)
            self._send(outputs)

    def _ended_in(self, outputs: EngineCoreOutputs) -> list[str]:
        """Ids of the requests that have ended in a turn; an id may be there twice."""
        ids = [output.request_id for output in outputs.outputs if output.finish_reason is not None]
        ids += [*outputs.aborted_req_ids, *outputs.stopped_req_ids]
        ids += [request_id for request_id, _ in outputs.refused]
        return [name for name in ids if name not in self.core.scheduler.requests]

    def _has_work(self) -> bool:
        may_step = not self._paused and self._steps_left != 0
        return may_step and self.core.has_unfinished_requests()

    def _seconds_to_wait(self) -> float | None:
        if not self._has_work():
            return None
        return 0 if self._stuck_since is None else _ASK_AGAIN

    def _step(self, outputs: EngineCoreOutputs) -> None:
        """Run a step. If no step has done anything for a second, waiting requests are refused."""
        trace = self.core.trace
        if trace is not None and self._trace is None:
            trace.forget_before(trace.num_steps - TRACE_STEPS)
        if self._steps_left is not None:
            self._steps_left -= 1
        try:
            step = make_progress(self.core.scheduler, self.core.step)
            self._add(step, outputs)
            self._stuck_since = None
        except LivelockError as error:
            now = time.monotonic()
            self._stuck_since = now if self._stuck_since is None else self._stuck_since
            if now - self._stuck_since >= _PATIENCE:
                self._stuck_since = None
                waiting = list(self.core.scheduler.requests)
                self.core.abort_requests(waiting)
                outputs.refused += [(request_id, error) for request_id in waiting]

    def _add(self, step: EngineCoreOutputs, outputs: EngineCoreOutputs) -> None:
        """Add what a step has brought to a turn's outputs."""
        outputs.outputs += step.outputs
        for request_id, found in step.prompt_logprobs.items():
            outputs.prompt_logprobs.setdefault(request_id, {}).update(found)
        outputs.timestamp = step.timestamp or outputs.timestamp

    def _end_in_flight(self, outputs: EngineCoreOutputs) -> None:
        """End the steps whose plans are in flight, before something that is no step."""
        for step in self.core.end_steps_in_flight():
            self._add(step, outputs)

    def _on_add(self, outputs: EngineCoreOutputs, request: Request) -> None:
        try:
            self.core.add_request(request)
        except ValueError as error:
            outputs.refused.append((request.request_id, error))

    def _on_refuse(
        self, outputs: EngineCoreOutputs, kind: str, key: Any, error: ValueError
    ) -> None:
        """Refuse a message that could not be read: of this kind, about this request or call."""
        (outputs.refused if kind == "add" else outputs.utility_outputs).append((key, error))

    def _on_abort(self, outputs: EngineCoreOutputs, request_ids: list[str]) -> None:
        unfinished = self.core.scheduler.requests
        outputs.aborted_req_ids += [name for name in request_ids if name in unfinished]
        self.core.abort_requests(request_ids)

    def _on_stop_sequences(
        self, outputs: EngineCoreOutputs, sequences: list[tuple[str, int]]
    ) -> None:
        self.core.scheduler.stop_sequences(sequences)
        outputs.stopped_req_ids += [request_id for request_id, _ in sequences]

    def _on_pause(self, outputs: EngineCoreOutputs) -> None:
        self._end_in_flight(outputs)
        self._pause(outputs)

    def _pause(self, outputs: EngineCoreOutputs) -> None:
        self._paused = True
        self._steps_left = None
        self._stuck_since = None
        self._answer_resumed(outputs)

    def _on_resume(self, outputs: EngineCoreOutputs, number: int, num_steps: int | None) -> None:
        self._paused = False
        self._steps_left = None if num_steps is None else (self._steps_left or 0) + num_steps
        self._resumed.append(number)
        if num_steps is None:
            self._answer_resumed(outputs)

    def _answer_resumed(self, outputs: EngineCoreOutputs) -> None:
        outputs.utility_outputs += [(number, None) for number in self._resumed]
        self._resumed.clear()

    def _on_follow(self, outputs: EngineCoreOutputs) -> None:
        self._trace = self.core.trace

    def _on_call(
        self, outputs: EngineCoreOutputs, number: int, method: str, arguments: tuple
    ) -> None:
        self._end_in_flight(outputs)
        try:
            outputs.utility_outputs.append((number, attrgetter(method)(self.core)(*arguments)))
        except Exception as error:  # it goes to the caller, and the core goes on
            outputs.utility_outputs.append((number, error))
