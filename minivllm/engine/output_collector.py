"""RequestOutputCollector: where one request's outputs wait for whoever reads them.

(vLLM: vllm/v1/engine/output_processor.py)
"""

from __future__ import annotations

import asyncio

from minivllm.outputs import RequestOutput


class RequestOutputCollector:
    """One request's outputs until somebody reads them; a late reader gets them merged."""

    def __init__(self, delta: bool):
        self._delta = delta
        self._pending: RequestOutput | Exception | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Add an output. What is new is joined to what has not been read; else it replaces it."""
        pending = self._pending
        if self._delta and isinstance(pending, RequestOutput) and not isinstance(output, Exception):
            pending.add(output)
        else:
            self._pending = output
        self._ready.set()

    async def get(self) -> RequestOutput:
        """The next output. Raises what has been put as an error."""
        while self._pending is None:
            await self._ready.wait()
        output, self._pending = self._pending, None
        self._ready.clear()
        if isinstance(output, Exception):
            raise output
        return output
