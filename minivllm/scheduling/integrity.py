"""check_integrity: the invariants of a scheduler between two steps."""

from __future__ import annotations

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.manager import KVCacheManager
from minivllm.request import Sequence
from minivllm.scheduling.checkpoint import SchedulerState


def check_integrity(scheduler: SchedulerState) -> None:
    """Raise ``AssertionError`` unless queues, requests, blocks and slots are consistent."""
    running = scheduler.running
    waiting = scheduler.waiting
    swapped = scheduler.swapped
    requests = scheduler.requests.values()
    sequences = scheduler.sequences
    manager = scheduler.kv_manager
    scheduler.lora_slots.check_integrity(running)
    if scheduler.encoder_inputs is not None:
        scheduler.encoder_inputs.check_integrity(running)
    manager.check_integrity()
    # each sequence is in one queue, and the dictionaries agree
    remote = scheduler.remote_kvs
    fetching = () if remote is None else tuple(remote.waiting.values())
    queued = [seq for r in (*waiting, *fetching, *swapped) for seq in r.unfinished_seqs]
    queued_ids = [seq.seq_id for seq in (*running, *queued)]
    assert sorted(queued_ids) == sorted(sequences), f"{queued_ids} != {list(sequences)}"
    alive = [seq for request in requests for seq in request.unfinished_seqs]
    assert {seq.seq_id: seq for seq in alive} == sequences
    # blocks are where the queues say
    running_ids = {seq.seq_id for seq in running}
    moving = set() if remote is None else remote.waiting.keys() | remote.sending.keys()
    assert set(manager.block_tables) == running_ids | moving, (
        "running sequences hold blocks, and transfers"
    )
    to_come = sum(seq.request.num_forks_to_come for seq in running)
    assert len(running) + to_come <= scheduler.config.max_num_seqs
    on_host = {seq.seq_id for request in swapped for seq in request.unfinished_seqs}
    assert set(manager.swap_space.tables) == on_host, "only the swapped are on the host"
    assert not any(seq.spec_token_ids for seq in queued), "drafts are for the running"
    for seq in running:
        # drafts in flight are computed beyond the last token
        computed = seq.num_computed_tokens - seq.num_in_flight_tokens
        num_tokens = seq.num_tokens
        assert computed <= num_tokens, (
            f"{seq.seq_id} has computed {computed} of {num_tokens} tokens"
        )
        for blocks, block_size in _tables(manager, seq):
            room = len(blocks) * block_size
            assert seq.num_computed_tokens <= room, f"{seq} holds {len(blocks)} blocks"
            if manager.prefix_cache is not None:
                beyond = blocks[seq.num_tokens // block_size :]
                assert not any(b.block_hash for b in beyond), f"a draft of {seq} can be found"


def _tables(manager: KVCacheManager, seq: Sequence) -> list[tuple[list[KVCacheBlock], int]]:
    """Blocks of each of a sequence's tables, and the positions that one of them holds."""
    if isinstance(manager, HybridKVCacheManager):
        tables = manager.block_tables[seq.seq_id].tables
        return [(table.blocks, table.block_size) for table in tables]
    return [(manager.block_tables[seq.seq_id].blocks, manager.block_size)]
