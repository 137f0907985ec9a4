"""KVConnectorBase: K and V that come from outside of an engine, or go there.

A connector has two faces. One is the scheduler's: it says how much of a prompt is to be had from
elsewhere, and which blocks must stay until they are sent. The other is a worker's: it moves the
bytes. Between them goes a ``KVConnectorMetadata``, which is a part of the plan, and back a
``KVConnectorOutput``. Each engine makes one object for the scheduler, and each worker one.
(vLLM: vllm/distributed/kv_transfer/kv_connector/v1/base.py)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from minivllm.request import Request, Sequence


class KVConnectorRole(Enum):
    """Side of a connector: with the scheduler, or with a worker."""

    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    """Base of what a connector's scheduler side tells its worker side with a plan."""


@dataclass
class KVConnectorOutput:
    """Transfers that have ended since the last step, by sequence id."""

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: dict[str, str] = field(default_factory=dict)  # why each has failed

    def __bool__(self) -> bool:
        return bool(self.finished_sending or self.finished_recving or self.failed_recving)


class KVConnectorBase:
    """Base of connectors; one of your own is a subclass.

    Args:
        config: the engine's VllmConfig; ``config.kv_transfer_config`` is the connector's.
        role: the side that this object is on.
        rank: of the worker whose side it is, among those that share each layer.

    Raises:
        ValueError: if the config has what the connector cannot do with.
    """

    def __init__(self, config: Any, role: KVConnectorRole, rank: int = 0):
        self.config = config
        self.role = role
        self.rank = rank

    # -- the scheduler's side ----------------------------------------------------------------------

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` if a request asks for a transfer that cannot be made."""

    def get_num_new_matched_tokens(
        self, seq: Sequence, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens of a sequence can be had from elsewhere, and when.

        It is asked once for each request, before its first token is computed.

        Args:
            seq: has not begun.
            num_computed_tokens: of its first tokens, those that the engine's own cache has.

        Returns:
            The number of tokens behind those; None if that is not known yet: ask again in the next
            step. And True if they come beside the steps, while the request waits; False if the
            worker loads them at the beginning of its first step.
        """
        raise NotImplementedError

    def update_state_after_alloc(
        self, seq: Sequence, block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Hear of a sequence's blocks: they have room for the tokens that are to come.

        Args:
            seq: the sequence.
            block_ids: of all its blocks, those of the engine's own cache included.
            num_external_tokens: as asked for; 0: nothing is to come.
        """
        raise NotImplementedError

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Make what the workers are told with a plan, which must not be changed."""
        raise NotImplementedError

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Hear of transfers that have ended in all workers."""

    def request_finished(
        self, seq: Sequence, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Hear of a sequence's end.

        Returns:
            True if its blocks must stay until they are sent. And the ``kv_transfer_params`` of its
            answer, which another engine needs; None: there are none.
        """
        return False, None

    # -- either side -------------------------------------------------------------------------------

    def forget_all(self) -> None:
        """Drop all transfers under way: a step has failed.

        The scheduler's side hears of it at once, a worker's with the next plan. The blocks behind
        them belong to others from now on.
        """

    def shutdown(self) -> None:
        """End threads and connections. A second call does nothing."""

    # -- the worker's side -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Mapping[str, Mapping[str, Any]]) -> None:
        """Hear of the tensors of each layer, by its name.

        Args:
            kv_caches: ``key`` and ``value``, each ``[num_blocks, block_size, num_kv_heads,
                head_dim]``; with scales of single tokens also ``key_scales`` and ``value_scales``.
        """

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        """Start what the plan asks for, before the forward pass."""
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait until a layer has what this very step reads."""

    def save_kv_layer(self, layer_name: str, metadata: KVConnectorMetadata) -> None:
        """Start to save what the plan asks for of a layer, after the forward pass."""

    def wait_for_save(self) -> None:
        """Wait until what is saved may be overwritten by the next step."""

    def get_finished(self, finished_req_ids: Iterable[str]) -> KVConnectorOutput:
        """Return the transfers that have ended since the last call.

        Args:
            finished_req_ids: sequences that have ended since the last plan.
        """
        return KVConnectorOutput()


class KVOutputAggregator:
    """Counts transfers of several workers: one has ended when all of them say so.

    (vLLM: vllm/distributed/kv_transfer/kv_connector/utils.py)

    Args:
        num_workers: how many there are.
    """

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()  # those that have failed, too
        self._failed: dict[str, str] = {}

    def aggregate(self, outputs: Iterable[KVConnectorOutput | None]) -> KVConnectorOutput:
        """Return the transfers that have now ended in all workers.

        One that has failed in any of them has failed.
        """
        for output in outputs:
            if output is not None:
                self._sent.update(output.finished_sending)
                self._received.update(output.finished_recving)
                self._received.update(output.failed_recving.keys())
                self._failed |= output.failed_recving
        received = self._take(self._received)
        failed = {name: self._failed.pop(name) for name in received if name in self._failed}
        return KVConnectorOutput(self._take(self._sent), received - failed.keys(), failed)

    def _take(self, counts: Counter[str]) -> set[str]:
        done = {name for name, count in counts.items() if count == self.num_workers}
        for name in done:
            del counts[name]
        return done

    def reset(self) -> None:
        """Forget all: after a failed step the workers drop what is under way."""
        self._sent.clear()
        self._received.clear()
        self._failed.clear()
