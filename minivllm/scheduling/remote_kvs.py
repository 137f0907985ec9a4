"""RemoteKVs: requests whose K and V come from elsewhere, and ended ones whose blocks are sent.

A request that waits for K and V holds all blocks of its prompt, but does not run: the transfer goes
on beside the steps. When it has ended, the request is admitted like any other, with all but its
last token computed. One that has ended may hold its blocks a while longer, until they are sent.
(vLLM: what vllm/v1/core/sched/scheduler.py asks of its connector)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit, CachingMetrics, PrefixCacheStats
from minivllm.kv_transfer.base import KVConnectorBase, KVConnectorOutput
from minivllm.metrics.stats import KV_FETCH_STAGES
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.request_queue import RequestQueue
from minivllm.trace import Trace
from minivllm.trace.records import BlocksAllocated, TransferEnded, TransferStarted


class Admission(Protocol):
    """Scheduler, as far as a request whose K and V are there is admitted by it."""

    waiting: RequestQueue
    running: list[Sequence]

    def resume(self, seq: Sequence, output: SchedulerOutput) -> None: ...

    def finish(
        self, seq: Sequence, status: RequestStatus, stop_reason: int | str | None = None
    ) -> None: ...


class RemoteKVs:
    """Transfers of a scheduler's requests, made by a connector.

    Args:
        connector: the scheduler's side of it.
        kv_manager: whose blocks are filled and read.
        recomputes: True: a request whose transfer fails is computed here; False: it ends with an
            error.
        trace: listens, if given.
    """

    def __init__(
        self,
        connector: KVConnectorBase,
        kv_manager: KVCacheManager,
        recomputes: bool = False,
        trace: Trace | None = None,
    ):
        self.connector = connector
        self.kv_manager = kv_manager
        self.recomputes = recomputes
        self.trace = trace
        # They hold blocks; their K and V are on their way, or have come. The oldest first.
        self.waiting: dict[str, Request] = {}
        # Ended, by id; their blocks are still read, or, if they were aborted, still written.
        self.sending: dict[str, Sequence] = {}
        self._received: set[str] = set()  # of those that wait: their K and V are there
        self.num_ended = 0  # transfers so far
        self._given_up: set[str] = set()  # requests whose transfer has failed, computed here
        self.stats = PrefixCacheStats()  # of what the connector was asked for
        self.recent = CachingMetrics()
        # nothing is to be had for these tokens of theirs; they count if they are admitted now
        self._without: list[tuple[Sequence, int]] = []

    # -- while a step is planned -------------------------------------------------------------------

    def consider(
        self, request: Request, output: SchedulerOutput, scheduler: Admission
    ) -> bool | None:
        """Fetch a request's K and V, or admit it if they are there.

        Returns:
            None: it is admitted as if there were no connector. True: it has been dealt with. False:
            there are too few blocks, and none behind it is admitted.
        """
        if self.waiting.pop(request.request_id, None) is not None:  # its K and V have come
            (seq,) = request.unfinished_seqs
            self._received.remove(request.request_id)
            self.kv_manager.cache_blocks(seq, seq.num_computed_tokens)
            scheduler.resume(seq, output)
            return True
        if request.num_cached_tokens is None:
            request.num_external_computed_tokens = 0  # those that did not come
        if len(request.unfinished_seqs) > 1 or request.request_id in self._given_up:
            return None
        (seq,) = request.unfinished_seqs
        hit = self.kv_manager.get_computed_blocks(seq)
        num_external, beside = self.connector.get_num_new_matched_tokens(seq, hit.num_tokens)
        if num_external is None:
            return True
        if num_external == 0 or seq.skip_reading_prefix_cache:
            self._without.append((seq, seq.num_tokens - hit.num_tokens))
            return None
        # Until its K and V have come it gives nothing back: it must fit beside what prompts under
        # way still need, or both could wait for each other.
        to_come = sum(map(self.kv_manager.num_missing_blocks, scheduler.running)) if beside else 0
        if not self.kv_manager.can_fit_full_sequence(seq, hit, num_reserved_blocks=to_come):
            return False
        self._reserve(seq, hit, num_external)
        scheduler.waiting.remove(request)
        if beside:
            seq.status = RequestStatus.WAITING_FOR_REMOTE_KVS
            self.waiting[request.request_id] = request
        else:
            scheduler.resume(seq, output)
        return True

    def _reserve(self, seq: Sequence, hit: CacheHit, num_external: int) -> None:
        """Reserve blocks for all tokens, those to come and the rest; others cannot find them."""
        manager = self.kv_manager
        manager.allocate_new_computed_blocks(seq, hit)
        if manager.prefix_cache is not None:
            manager.prefix_cache.record_queries([seq])
        self._count(seq, seq.num_tokens - hit.num_tokens, num_external)
        seq.num_computed_tokens += num_external
        table = manager.block_tables[seq.seq_id]
        blocks = manager.block_pool.get_new_blocks(table.num_missing_blocks(seq.num_tokens))
        table.blocks += blocks
        self.connector.update_state_after_alloc(seq, table.block_ids, num_external)
        if self.trace is not None:
            self.trace.record(BlocksAllocated, seq.seq_id, tuple(b.block_id for b in blocks))
            self.trace.record(TransferStarted, seq.seq_id, "recv", num_external)
        # the last token is computed in any case: its logits give the next one
        seq.num_computed_tokens = min(seq.num_computed_tokens, seq.num_tokens - 1)
        num_external = max(0, seq.num_computed_tokens - hit.num_tokens)
        seq.request.num_external_computed_tokens = num_external

    def _count(self, seq: Sequence, num_tokens: int, num_hits: int) -> None:
        """Count a request that is admitted: tokens asked of the connector, and what it has."""
        preempted = seq.request.num_preemptions > 0
        self.stats.record(num_tokens, num_hits, preempted)
        if not preempted:
            self.recent.observe(num_tokens, num_hits)

    # -- after a step ------------------------------------------------------------------------------

    def update(self, output: KVConnectorOutput | None, scheduler: Admission) -> list[Sequence]:
        """Hear of transfers that have ended. Returns the sequences that end since theirs failed."""
        for seq, num_tokens in self._without:
            if seq.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
                self._count(seq, num_tokens, 0)
        self._without.clear()
        if not output:
            return []
        self.connector.update_connector_output(output)
        for names in (output.finished_sending, output.finished_recving, output.failed_recving):
            self.num_ended += len(names)
        for seq_id in sorted((*output.finished_sending, *output.finished_recving)):
            if self.trace is not None:
                kind = "send" if seq_id in output.finished_sending else "recv"
                self.trace.record(TransferEnded, seq_id, kind)
            if seq_id in self.sending:
                self.kv_manager.free(self.sending.pop(seq_id))
            elif seq_id in self.waiting:
                self._received.add(seq_id)
                self._seq(seq_id).status = RequestStatus.WAITING
        ended = [self._fail(seq_id, scheduler) for seq_id in sorted(output.failed_recving)]
        return [seq for seq in ended if seq is not None]

    def _fail(self, seq_id: str, scheduler: Admission) -> Sequence | None:
        """Compute a request whose transfer has failed, or end it with an error and return it."""
        index = None
        seq = None
        if seq_id in self.sending:  # it was aborted
            self.kv_manager.free(self.sending.pop(seq_id))
        elif seq_id in self.waiting:
            seq = self._seq(seq_id)
            request = self.waiting.pop(seq_id)
            seq.status = RequestStatus.WAITING
            if self.recomputes:
                self._given_up.add(seq_id)
                self.kv_manager.free(seq)
                seq.num_computed_tokens = 0
                index = scheduler.waiting.add_preempted(request)
        if self.trace is not None:
            self.trace.record(TransferEnded, seq_id, "recv", False, index)
        if seq is None or self.recomputes:
            return None
        scheduler.finish(seq, RequestStatus.FINISHED_ERROR)
        return seq

    def _seq(self, request_id: str) -> Sequence:
        (seq,) = self.waiting[request_id].seqs
        return seq

    def keeps(self, seq: Sequence) -> bool:
        """Hear of a sequence that ends. True if its blocks must stay until a transfer has ended."""
        request = seq.request
        self._given_up.discard(request.request_id)
        if self.waiting.pop(request.request_id, None) is not None:
            if request.request_id in self._received:
                self._received.remove(request.request_id)
                return False
            self.sending[seq.seq_id] = seq
            return True
        table = self.kv_manager.block_tables.get(seq.seq_id)
        block_ids = [] if table is None else table.block_ids
        stays, request.kv_transfer_answer = self.connector.request_finished(seq, block_ids)
        if stays:
            self.sending[seq.seq_id] = seq
            if self.trace is not None:
                self.trace.record(TransferStarted, seq.seq_id, "send", seq.num_computed_tokens)
        return stays

    def reset(self) -> None:
        """Forget all transfers: a step has failed, and no block is anybody's any more."""
        self.connector.forget_all()
        self.waiting.clear()
        self.sending.clear()
        self._received.clear()
        self._without.clear()

    def _is_to_be_fetched(self, request: Request) -> bool:
        params = request.kv_transfer_params or {}
        is_new = request.request_id not in self._given_up and not request.num_preemptions
        return bool(params.get("do_remote_prefill")) and is_new

    def make_stats(self, waiting: Iterable[Request]) -> dict[str, Any]:
        """Make the fields of SchedulerStats that are about transfers.

        Args:
            waiting: requests of the waiting queue.
        """
        to_start = sum(map(self._is_to_be_fetched, waiting))
        counts = (to_start, len(self.waiting) - len(self._received), len(self._received))
        return {
            "external_prefix_cache_queries": self.stats.queries,
            "external_prefix_cache_hits": self.stats.hits,
            "recent_external_prefix_cache_queries": self.recent.queries,
            "recent_external_prefix_cache_hits": self.recent.hits,
            "num_kv_fetch_reqs_by_stage": dict(zip(KV_FETCH_STAGES, counts, strict=True)),
        }


class Connectable(Protocol):
    """Scheduler, as far as a connector is put into it."""

    kv_manager: KVCacheManager
    remote_kvs: RemoteKVs | None
    waiting: RequestQueue
    trace: Trace | None


def connect(scheduler: Connectable, connector: KVConnectorBase, recomputes: bool = False) -> None:
    """Give a scheduler the RemoteKVs of a connector; arguments as there."""
    remote = RemoteKVs(connector, scheduler.kv_manager, recomputes, scheduler.trace)
    scheduler.remote_kvs = remote
    scheduler.waiting.holding = remote.waiting
