"""Do the scheduler's books balance? Tests ask after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.scheduling.scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """Raise ``AssertionError`` unless queues, requests and blocks tell the same story."""
    scheduler.kv_manager.check_integrity()
    queues = (*scheduler.waiting, *scheduler.swapped)
    waiting = [seq for request in queues for seq in request.unfinished_seqs]
    queued = [seq.seq_id for seq in (*scheduler.running, *waiting)]
    alive = [seq for request in scheduler.requests.values() for seq in request.unfinished_seqs]
    known = list(scheduler.sequences)
    assert sorted(queued) == sorted(known), f"{queued} != {known}"
    assert {seq.seq_id: seq for seq in alive} == scheduler.sequences
    running = {seq.seq_id for seq in scheduler.running}
    assert set(scheduler.kv_manager.block_tables) == running, "only running sequences hold blocks"
    to_come = sum(seq.request.num_forks_to_come for seq in scheduler.running)
    assert len(running) + to_come <= scheduler.max_num_seqs
    swapped = {seq.seq_id for request in scheduler.swapped for seq in request.unfinished_seqs}
    assert set(scheduler.kv_manager.swap_space.tables) == swapped, (
        "only the swapped are on the host"
    )
    for seq in scheduler.running:
        held = len(scheduler.kv_manager.block_tables[seq.seq_id].blocks)
        room = held * scheduler.kv_manager.block_size
        assert seq.num_computed_tokens <= room, f"{seq} holds {held} blocks"
