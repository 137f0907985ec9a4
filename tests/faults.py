"""Faults: switches that let a step of the engine fail at any point where something can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

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
UPDATING = (
    "scheduler.update_from_output",
    "scheduler.kv_manager.fork",
    "scheduler.fork",
    "scheduler.finish",
    "scheduler.next_output.finish",
    "scheduler.kv_manager.free",
    "scheduler.kv_manager.block_pool.free_blocks",
)


class Fault(RuntimeError):
    """Error that a switch raises."""


@contextmanager
def fault_at(
    engine: Any, path: str, call: int = 0, after: bool = False, runner: Any = None
) -> Iterator[None]:
    """Let a method of the engine fail.

    Args:
        engine: an ``LLMEngine``.
        path: one of ``PLANNING``, ``COMPUTING`` and ``UPDATING``.
        call: which of its calls, counted from 0.
        after: fail when it has done its work, not before.
        runner: the model runner, one of several ranks'; None: the engine's only one.

    Raises:
        Fault: from inside of ``engine.step()``.
    """
    *names, last = path.split(".")
    owner = engine
    if runner is not None and names[0] == "model_runner":
        owner, names = runner, names[1:]
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


def tokens(engine: Any) -> dict[str, Any]:
    """Each request's tokens and the state of its grammar: a failed step must not change them."""
    return {
        seq_id: (list(seq.token_ids), seq.cumulative_logprob, seq.grammar and mask(seq.grammar))
        for seq_id, seq in sorted(engine.scheduler.sequences.items())
    }


def mask(grammar: Any) -> bytes:
    """The tokens that a grammar allows next."""
    row = np.zeros((1, 64), np.int32)
    grammar.fill_bitmask(row, 0)
    return row.tobytes()
