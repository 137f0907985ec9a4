"""Checker: debug mode of the tracer, each step's state compared with vLLM's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.logger import init_logger
from minivllm.xray.format import XRay, new_trace
from minivllm.xray.live import Batch

logger = init_logger(__name__)


class Checker:
    """Keeps the state that the records lead to, and compares it at the end of each step.

    Args:
        header: see ``XRay``.
        look: what vLLM has now, see ``what_vllm_has``.
    """

    def __init__(self, header: dict[str, Any], look: Callable[[], dict[str, Any]]):
        self._trace = new_trace(header)
        self._xray = XRay(header, self._trace)
        self._state = self._trace.beginning()
        self._look = look
        self.num_steps = 0
        self.mismatches: list[str] = []

    def check(self, batch: Batch) -> None:
        """Follow a batch; behind a step's end log each difference that was not logged before."""
        step, rows, requests = batch
        for record in self._xray.read_step(step, rows, requests):
            self._state.apply(record)
        self._trace.records.clear()
        self._state.forget_finished()
        if rows[-1][0] != "StepEnded":
            return
        self.num_steps += 1
        ours = self._what_the_trace_has()
        for name, theirs in self._look().items():
            if ours[name] != theirs and name not in self.mismatches:
                self.mismatches.append(name)
                what = "X-ray, step %d: %s differ. The trace: %s. vLLM: %s."
                logger.error(what, step, name, ours[name], theirs)

    def report(self) -> None:
        """Log how many steps were compared, and what differed."""
        what = "X-ray: %d steps compared with vLLM's own state; %s."
        differ = ", ".join(self.mismatches)
        logger.info(what, self.num_steps, f"different: {differ}" if differ else "all equal")

    def _what_the_trace_has(self) -> dict[str, Any]:
        state = self._state
        return {
            "block tables": {
                (s.seq_id, group): table
                for s in state.sequences.values()
                for group, table in enumerate(s.tables)
                if table
            },
            "numbers of free blocks": state.num_free_blocks,
            "free queues": list(state.free_queue),
            "cached blocks": set(state.cached),
            "running sequences": state.running,
            "waiting requests": state.waiting,
            # vLLM counts what is planned
            "computed tokens": {
                s: state.sequences[s].num_computed_tokens + state.sequences[s].num_scheduled_tokens
                for s in state.running
            },
        }


def what_vllm_has(scheduler: Any) -> dict[str, Any]:
    """Block tables, free and cached blocks and queues of vLLM's scheduler."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    pool = managers[0].block_pool
    return {
        "block tables": {
            (name, group): [block.block_id for block in blocks]
            for group, manager in enumerate(managers)
            for name, blocks in manager.req_to_blocks.items()
            if blocks
        },
        "numbers of free blocks": pool.get_num_free_blocks(),
        "free queues": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
        "cached blocks": {b.block_id for b in pool.blocks if b.block_hash is not None},
        "running sequences": [r.request_id for r in scheduler.running],
        "waiting requests": [r.request_id for r in scheduler.waiting],
        "computed tokens": {r.request_id: r.num_computed_tokens for r in scheduler.running},
    }
