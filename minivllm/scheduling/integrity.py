"""check_integrity: the invariants of a scheduler between two steps."""

from __future__ import annotations

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
    queued = [seq for r in (*waiting, *swapped) for seq in r.unfinished_seqs]
    queued_ids = [seq.seq_id for seq in (*running, *queued)]
    assert sorted(queued_ids) == sorted(sequences), f"{queued_ids} != {list(sequences)}"
    alive = [seq for request in requests for seq in request.unfinished_seqs]
    assert {seq.seq_id: seq for seq in alive} == sequences
    # blocks are where the queues say
    running_ids = {seq.seq_id for seq in running}
    assert set(manager.block_tables) == running_ids, "only running sequences hold blocks"
    to_come = sum(seq.request.num_forks_to_come for seq in running)
    assert len(running) + to_come <= scheduler.config.max_num_seqs
    on_host = {seq.seq_id for request in swapped for seq in request.unfinished_seqs}
    assert set(manager.swap_space.tables) == on_host, "only the swapped are on the host"
    assert not any(seq.spec_token_ids for seq in queued), "drafts are for the running"
    for seq in running:
        blocks = manager.block_tables[seq.seq_id].blocks
        room = len(blocks) * manager.block_size
        # drafts in flight are computed beyond the last token
        computed = seq.num_computed_tokens - seq.num_in_flight_tokens
        num_tokens = seq.num_tokens
        assert computed <= num_tokens, (
            f"{seq.seq_id} has computed {computed} of {num_tokens} tokens"
        )
        assert seq.num_computed_tokens <= room, f"{seq} holds {len(blocks)} blocks"
        if manager.prefix_cache is not None:
            beyond = blocks[seq.num_tokens // manager.block_size :]
            assert not any(b.block_hash for b in beyond), f"a draft of {seq} can be found"
