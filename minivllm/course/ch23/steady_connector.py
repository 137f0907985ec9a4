"""SteadyConnector: an ExampleConnector whose transfers take the same number of steps each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minivllm.kv_transfer.base import KVConnectorOutput
from minivllm.kv_transfer.example_connector import ExampleConnector, ExampleConnectorMetadata

NUM_STEPS = 3


class SteadyConnector(ExampleConnector):
    """A connector of which a picture is the same on every machine.

    Blocks are read out, and files looked for, ``NUM_STEPS`` steps after the plan that asks for it,
    as if a link took that long; the step then waits for the files.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.asked: list[ExampleConnectorMetadata] = []  # by the last steps, the oldest first
        self.under_way: set[str] = set()

    def start_load_kv(self, metadata: Any) -> None:
        """Start what was asked for some steps ago."""
        self.asked.append(metadata)
        if len(self.asked) < NUM_STEPS:
            return
        due = self.asked.pop(0)
        self.under_way |= {transfer.seq_id for transfer in (*due.loads, *due.saves)}
        super().start_load_kv(due)

    def get_finished(self, finished_req_ids: Iterable[str]) -> KVConnectorOutput:
        """Return the transfers under way, when all of them have ended."""
        output = KVConnectorOutput()
        while self.under_way:
            found = super().get_finished(finished_req_ids)
            output.finished_sending |= found.finished_sending
            output.finished_recving |= found.finished_recving
            output.failed_recving |= found.failed_recving
            ended = found.finished_sending | found.finished_recving
            self.under_way -= ended | found.failed_recving.keys()
        return output
