"""PlannedScheduler: the engine's scheduler, with a plan of the reader's in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.course.asking.answers import is_whole
from minivllm.course.grading.run import Fault
from minivllm.kv.prefix_cache import CacheHit
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.math_utils import cdiv


class PlannedScheduler(Scheduler):
    """Scheduler whose steps are planned by a function like ``my_schedule`` of notebook 05.

    The function knows no prefix cache, no threshold and no preemption. Steps with any of these are
    planned by the engine's own code. A subclass sets ``planner``.
    """

    planner: Callable[..., Any]

    def schedule(self) -> SchedulerOutput:
        """Plan one step, and take the blocks for it.

        Raises:
            Fault: for a plan that cannot be carried out.
        """
        if not self._is_planned():
            return super().schedule()
        plan = type(self).planner(
            {seq.seq_id: (seq.num_tokens, seq.num_computed_tokens) for seq in self.running},
            {request.request_id: request.seqs[0].num_tokens for request in self.waiting},
            token_budget=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            num_free_blocks=self.kv_manager.block_pool.num_free_blocks,
            block_size=self.kv_manager.block_size,
        )
        return self._carry_out(plan)

    def _is_planned(self) -> bool:
        """True for a step in which the running requests only go on, and blocks are there for it."""
        config = self.config
        is_plain = config.enable_chunked_prefill and not config.long_prefill_token_threshold
        if not self.requests or self.kv_manager.prefix_cache is not None or not is_plain:
            return False
        size = self.kv_manager.block_size
        budget = config.max_num_batched_tokens
        num_blocks = 0
        for seq in self.running:
            num_new = min(seq.num_tokens - seq.num_computed_tokens, budget)
            budget -= num_new
            num_held = cdiv(seq.num_computed_tokens, size)
            num_blocks += cdiv(seq.num_computed_tokens + num_new, size) - num_held
        return num_blocks <= self.kv_manager.block_pool.num_free_blocks

    def _carry_out(self, plan: Any) -> SchedulerOutput:
        output = self.next_output
        self.next_output = SchedulerOutput()
        if not isinstance(plan, dict) or not all(map(is_whole, plan.values())):
            raise Fault("return a dict of whole numbers, tokens by name")
        for name, num_new in plan.items():
            seq = self.sequences.get(name)
            lacking = 0 if seq is None else seq.num_tokens - seq.num_computed_tokens
            if seq is None or not 0 < num_new <= lacking:
                raise Fault(f"{name} lacks {lacking} tokens; the plan gives it {num_new}")
            self.token_budget = num_new
            if seq in self.running:
                copies = output.kv_cache_block_copies
                new_ids = self.kv_manager.allocate_slots(seq, num_new, copies)
                if new_ids is None:
                    raise Fault(f"there are too few free blocks for {num_new} tokens of {name}")
                self._add_to_output(output, seq, num_new)
                if new_ids:
                    output.new_block_ids[name] = self.kv_manager.ids_by_group(new_ids)
            else:
                self.waiting.remove(seq.request)
                self.kv_manager.allocate_new_computed_blocks(seq, CacheHit())
                self._start(seq, num_new, output)
                self.running.append(seq)
        self._complete(output)
        return output
