"""Faults: switches that let a step of the engine fail at any point where something can.

A step is a transaction: whatever raises in it, books and blocks are as before. These
switches are how that is tested, and shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# where a step can fail: a path from the engine to a method, in the order of a step
PLANNING = (
    "scheduler.policy.may_admit",
    "scheduler.policy.key",
    "scheduler.policy.victim",
    "scheduler.kv_manager.get_computed_blocks",
    "scheduler.kv_manager.can_fit_full_sequence",
    "scheduler.kv_manager.allocate_new_computed_blocks",
    "scheduler.kv_manager.allocate_slots",
    "scheduler.preemptor.swapper.swap_out",
    "scheduler.preemptor.swapper.can_swap_in",
    "scheduler.preemptor.swapper.swap_in",
    "scheduler.kv_manager.block_pool.get_new_blocks",
    "scheduler.kv_manager.block_pool.touch",
    "scheduler.kv_manager.prefix_cache.block_hashes",
    "scheduler.kv_manager.prefix_cache.add",
    "scheduler.kv_manager.prefix_cache.remove",
    "scheduler.kv_manager.get_block_ids",
)
COMPUTING = (
    "model_runner.input_batch.update",
    "model_runner._move_blocks",
    "model_runner.prepare_inputs",
    "model_runner._forward",
    "model_runner.input_batch.fork",
    "model_runner.model.compute_logits",
    "model_runner.input_batch.sampling_metadata",
    "model_runner.sampler",
    "model_runner._sample",
)
BOOKING = (
    "scheduler.update_from_output",
    "scheduler.kv_manager.fork",
    "scheduler.fork",
    "scheduler.finish",
    "scheduler.kv_manager.free",
    "scheduler.kv_manager.block_pool.free_blocks",
)


class Fault(RuntimeError):
    """What a switch raises."""


@contextmanager
def fault_at(engine: Any, path: str, call: int = 0, after: bool = False) -> Iterator[None]:
    """Let a method of the engine fail.

    Args:
        engine: an ``LLMEngine``.
        path: one of ``PLANNING``, ``COMPUTING`` and ``BOOKING``.
        call: which of its calls, counted from 0.
        after: fail when it has done its work, not before.

    Raises:
        Fault: from inside of ``engine.step()``.
    """
    *names, last = path.split(".")
    owner = engine
    for name in names:
        owner = getattr(owner, name)
    original, count = getattr(owner, last), 0

    def switched(*args, **kwargs):
        nonlocal count
        count += 1
        if count != call + 1:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        raise Fault(f"{path}, call {call}, {'after' if after else 'before'} its work")

    own = last in vars(owner)
    object.__setattr__(owner, last, switched)
    try:
        yield
    finally:
        if own:
            object.__setattr__(owner, last, original)
        else:
            object.__delattr__(owner, last)


def books(engine: Any) -> dict[str, Any]:
    """All that a step changes, as plain values: two are equal if nothing has changed.

    Args:
        engine: an ``LLMEngine``.
    """
    scheduler, states = engine.scheduler, engine.model_runner.input_batch.states
    manager = scheduler.kv_manager
    pool, cache, space = manager.block_pool, manager.prefix_cache, manager.swap_space
    return {
        "queues": [[r.request_id for r in q] for q in (scheduler.waiting, scheduler.swapped)],
        "running": [seq.seq_id for seq in scheduler.running],
        "sequences": {
            s: (seq.status, seq.num_computed_tokens, list(seq.token_ids), seq.cumulative_logprob)
            for s, seq in sorted(scheduler.sequences.items())
        },
        "requests": {
            r: ([s.seq_id for s in q.seqs], q.num_preemptions, q.num_cached_tokens)
            for r, q in sorted(scheduler.requests.items())
        },
        "told": (list(scheduler.finished_req_ids), list(scheduler.beam_moves)),
        "preemptions": scheduler.num_preemptions,
        "tables": {s: table.block_ids for s, table in sorted(manager.block_tables.items())},
        "blocks": [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        "free": [block.block_id for block in pool.free_block_queue],
        "cached": None if cache is None else {b: list(same) for b, same in cache._blocks.items()},
        "host": {s: [b.block_id for b in t] for s, t in sorted(space.tables.items())},
        "host free": []
        if space.pool is None
        else [b.block_id for b in space.pool.free_block_queue],
        "runner": {
            s: (list(state.token_ids), list(state.block_ids))
            for s, state in sorted(states.items())
            if s in scheduler.sequences  # others are about to be forgotten
        },
        "records": None if engine.trace is None else (engine.trace.step, len(engine.trace.records)),
    }
