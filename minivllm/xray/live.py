"""LiveTrace: the Trace of a vLLM that runs in this process."""

from __future__ import annotations

import marshal
from typing import Any

from minivllm.trace import Trace
from minivllm.trace.records import Record
from minivllm.xray.format import XRay, groups_of

Batch = tuple[int, list, dict]  # a step, its rows, and what new requests ask for


class LiveTrace(Trace):
    """A Trace whose records are made when they are asked for: a step of vLLM does not wait for it.

    Args:
        header: of the X-ray, see ``XRay``.
    """

    def __init__(self, header: dict[str, Any]):
        self._made: list[Record] = []
        self._batches: list[bytes] = []
        budget = header["settings"]["max_num_batched_tokens"]
        num_blocks, block_size = header["num_blocks"], header["block_size"]
        super().__init__(num_blocks, block_size, budget, groups=groups_of(header))
        self._xray = XRay(header, self, tells_apart=True)

    def add(self, step: int, packed: bytes) -> None:
        """Keep what came in a step, or between two, until it is asked for: a marshalled Batch."""
        self._batches.append(packed)
        self.step = max(self.step, step)

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        """Return what each request asked for, see ``XRay``."""
        self._read()
        return self._xray.requests

    @property
    def records(self) -> list[Record]:
        self._read()
        return self._made

    @records.setter
    def records(self, records: list[Record]) -> None:
        self._made = records

    def _read(self) -> None:
        batches = self._batches
        self._batches = []
        for batch in batches:
            step, rows, requests = marshal.loads(batch)
            self._xray.read_step(step, rows, requests)
