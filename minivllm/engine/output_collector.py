"""RequestOutputCollector: the asynchronous queue of one request's outputs.

(vLLM: vllm/v1/engine/output_processor.py)
"""

from __future__ import annotations

import asyncio

from minivllm.outputs import RequestOutput


class RequestOutputCollector:
    """A queue of one output: those that are not read in time are merged, but for the first."""

    def __init__(self, delta: bool):
        self._delta = delta
        self._first: RequestOutput | None = None  # until it is read
        self._begun = False
        self._pending: RequestOutput | Exception | None = None
        self._ready = asyncio.Event()

    def deliver(self, output: RequestOutput) -> None:
        """Put an output of the engine. The first DELTA is read by itself, however late.

        So a stream begins with one token, whether the reader or the engine is faster.
        """
        if self._delta and not self._begun:
            self._first, self._begun = output, True
            self._ready.set()
        else:
            self.put(output)

    def put(self, output: RequestOutput | Exception) -> None:
        """Put an output: a DELTA is joined to the one not yet read, any other replaces it."""
        pending = self._pending
        if self._delta and isinstance(pending, RequestOutput) and not isinstance(output, Exception):
            pending.add(output)
        else:
            self._pending = output
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Wait for the next output. Raises an exception that was put."""
        while self._first is None and self._pending is None:
            await self._ready.wait()
        output: RequestOutput | Exception | None
        output, self._first = self._first, None
        if output is None:
            output, self._pending = self._pending, None
        if self._pending is None:
            self._ready.clear()
        assert output is not None, "it was waited for"
        if isinstance(output, Exception):
            raise output
        return output
