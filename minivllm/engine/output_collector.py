"""OutputQueue and RequestOutputCollector: queues of outputs, the second one asynchronous.

(vLLM: vllm/v1/engine/output_processor.py)
(notebook 21b)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from minivllm.outputs import PoolingRequestOutput, RequestOutput

Output = RequestOutput | PoolingRequestOutput | Exception


class OutputQueue(Protocol):
    """Interface of a queue that takes the outputs of one request or several.

    An output is a ``RequestOutput`` or a ``PoolingRequestOutput``; an exception ends a request that
    has failed.
    """

    def put(self, output: Output) -> None: ...


class RequestOutputCollector:
    """Asynchronous queue of one request's outputs: those not read in time are merged.

    The first DELTA is read by itself, however late. So a stream begins with one token, whether the
    reader or the engine is faster.

    Args:
        request_id: whose outputs.
        delta: an output holds what is new only.
    """

    def __init__(self, request_id: str, delta: bool):
        self.request_id = request_id
        # Called in the event loop with this collector, when it has something to read.
        self.on_put: Callable[[RequestOutputCollector], None] | None = None
        self._delta = delta
        self._begun = False
        self._first: Output | None = None  # until it is read
        self._pending: Output | None = None  # the outputs after it, merged

    def put(self, output: Output) -> None:
        """Put an output: a DELTA is joined to the one not yet read, any other replaces it."""
        pending = self._pending if self._delta else None
        if self._delta and not self._begun:
            self._first = output
            self._begun = True
        elif isinstance(pending, RequestOutput) and isinstance(output, RequestOutput):
            pending.add(output)
        else:
            self._pending = output
        if self.on_put is not None:
            self.on_put(self)

    def get_nowait(self) -> Any:
        """Return the next output, if one is there. Raises an exception that was put."""
        output = self._first
        self._first = None
        if output is None:
            output = self._pending
            self._pending = None
        if isinstance(output, Exception):
            raise output
        return output

    async def get(self) -> Any:
        """Wait for the next output. Raises an exception that was put."""
        while (output := self.get_nowait()) is None:
            reader = asyncio.get_running_loop().create_future()
            self.on_put = lambda _, reader=reader: _wake(reader)
            await reader
        return output


def _wake(reader: asyncio.Future) -> None:
    if not (reader.done() or reader.get_loop().is_closed()):
        reader.set_result(None)
