"""Replay of recordings with a KV connector: mode "kv".

A made-up connector takes the place of the real one: a transfer ends a number of calls after it has
begun, as the recording says.
"""

from __future__ import annotations

from typing import Any

from minivllm.config.kv_transfer import KV_ROLES
from minivllm.kv_transfer.base import (
    KVConnectorBase,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorRole,
)
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.utils.validation import check, is_int

_ASKS = ("do_remote_prefill", "do_remote_decode")
_MOST_CALLS = 10**6


class ScriptedConnector(KVConnectorBase):
    """A connector whose transfers take as many calls as their requests say (``delay``)."""

    def __init__(self) -> None:
        super().__init__(config=None, role=KVConnectorRole.SCHEDULER)
        self.call = 0  # set by the recorder: the number of the call that is under way
        self._receiving: dict[str, int] = {}  # by sequence: the call that reports its end
        self._sending: dict[str, int] = {}
        self._asked: set[str] = set()

    def get_num_new_matched_tokens(
        self, seq: Sequence, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All of the prompt that is not cached, once: after a preemption it is computed."""
        if not _asks(seq.request, "do_remote_prefill") or seq.seq_id in self._asked:
            return 0, False
        return seq.num_prompt_tokens - num_computed_tokens, True

    def update_state_after_alloc(
        self, seq: Sequence, block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Begin a transfer."""
        self._asked.add(seq.seq_id)
        self._receiving[seq.seq_id] = self.call + _delay(seq.request)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Make no message: there is no worker."""
        return KVConnectorMetadata()

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        """No-op: there is no worker."""

    def request_finished(
        self, seq: Sequence, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of an answer that ended by its length, if another engine goes on."""
        by_length = seq.status == RequestStatus.FINISHED_LENGTH_CAPPED
        if not by_length or not _asks(seq.request, "do_remote_decode"):
            return False, None
        self._sending[seq.seq_id] = self.call + _delay(seq.request)
        return True, None

    def forget_all(self) -> None:
        """Begin none of those again that were under way: all blocks are free."""
        self._asked -= self._receiving.keys()
        self._receiving.clear()
        self._sending.clear()

    def transfers_ended(self) -> KVConnectorOutput:
        """Return the transfers that this call reports."""
        return KVConnectorOutput(self._take_due(self._sending), self._take_due(self._receiving))

    def _take_due(self, transfers: dict[str, int]) -> set[str]:
        due = {name for name, call in transfers.items() if call <= self.call}
        for name in due:
            del transfers[name]
        return due


def _asks(request: Request, name: str) -> bool:
    return bool((request.kv_transfer_params or {}).get(name))


def _delay(request: Request) -> int:
    return (request.kv_transfer_params or {})["delay"]


def check_kv_role(config: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless a config of mode "kv" has a role."""
    role = config.get("kv_role")
    check(role in KV_ROLES, "config['kv_role']", role, f"one of {KV_ROLES}")


def check_transfer(where: str, params: Any) -> None:
    """Raise ``ValueError`` unless these are ``kv_transfer_params`` of a recording."""
    ok = isinstance(params, dict) and any(params.get(name) is True for name in _ASKS)
    check(ok, where, params, f"an object with one of {_ASKS} true")
    delay = params.get("delay")
    ok = is_int(delay, 1) and delay <= _MOST_CALLS
    check(ok, f"{where}['delay']", delay, f"an integer from 1 to {_MOST_CALLS}")
