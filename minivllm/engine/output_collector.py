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
        self._begun = False
        self._first: RequestOutput | Exception | None = None  # until it is read
        self._pending: RequestOutput | Exception | None = None  # what came after it
        self._reader: asyncio.Future | None = None  # done when there is something to read

    def put(self, output: RequestOutput | Exception) -> None:
        """Put an output: a DELTA is joined to the one not yet read, any other replaces it.

        The first DELTA is read by itself, however late. So a stream begins with one token, whether
        the reader or the engine is faster.
        """
        pending = self._pending if self._delta else None
        if self._delta and not self._begun:
            self._first, self._begun = output, True
        elif isinstance(pending, RequestOutput) and isinstance(output, RequestOutput):
            pending.add(output)
        else:
            self._pending = output
        reader = self._reader
        if reader is not None and not (reader.done() or reader.get_loop().is_closed()):
            reader.set_result(None)

    async def get(self) -> RequestOutput:
        """Wait for the next output. Raises an exception that was put."""
        output = self._take()
        while output is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
            output = self._take()
        if isinstance(output, Exception):
            raise output
        return output

    def _take(self) -> RequestOutput | Exception | None:
        output, self._first = self._first, None
        if output is None:
            output, self._pending = self._pending, None
        return output
