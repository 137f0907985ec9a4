"""Poisoned blocks: whatever a block holds that no table has is NaN, on the device and on the host.

So a run whose tokens stay right has read nothing else. A block that can be found in the prefix
cache keeps what it holds, and the null block stays as it is.
"""

import torch
from helpers import workers_of


class PoisonedBlocks:
    """Writes NaN into an engine's blocks, before the forward pass of each step.

    Into those that are free by then, and those that were handed out since the last one; a copy
    that the plan asks for has been made. Plans in flight are computed one after the other, so that
    none finds what a later one has left.

    Args:
        llm: the engine, with its workers in this process.
    """

    def __init__(self, llm):
        self.scheduler = llm.llm_engine.engine_core.scheduler
        self.manager = self.scheduler.kv_manager
        self.num_poisoned = 0  # blocks that had held something, over all steps
        self._used = set()
        self._handed_out = set()
        self._of_plan = {}
        self.plans = []
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule
        self._get_new_blocks = self.manager.block_pool.get_new_blocks
        self.manager.block_pool.get_new_blocks = self.get_new_blocks
        self.runners = [worker.model_runner for worker in workers_of(llm)]
        for runner in self.runners:
            self.watch(runner)

    def get_new_blocks(self, n):
        """Take blocks of the pool, and note them."""
        blocks = self._get_new_blocks(n)
        self._handed_out.update(block.block_id for block in blocks)
        return blocks

    def schedule(self):
        """Make a plan, and note what holds nothing of value when it is carried out."""
        plan = self._schedule()
        self.plans.append(plan)
        free = {block.block_id for block in self.manager.block_pool.blocks[1:]
                if block.ref_cnt == 0 and block.block_hash is None}  # fmt: skip
        moves = [*plan.swaps_in, *plan.kv_cache_block_copies]
        device = (free | self._handed_out) - {move.dst_block_id for move in moves}
        self.num_poisoned += len(device & self._used)
        self._used |= self._handed_out
        host_pool = self.manager.swap_space.pool
        host = [] if host_pool is None else [b.block_id for b in host_pool.blocks if not b.ref_cnt]
        if plan.num_scheduled_tokens or moves or plan.swaps_out:
            self._of_plan[id(plan)] = sorted(device), host
            self._handed_out = set()
        return plan

    def watch(self, runner):
        """Poison the blocks of a runner's plans, once its copies are made."""
        prepare_inputs, move_blocks = runner.prepare_inputs, runner._move_blocks

        def poison(plan):
            if id(plan) in self._of_plan:  # not of a step that measures memory
                device, host = self._of_plan[id(plan)]
                write_nan(runner.kv_cache, device)
                write_nan(runner.host_kv_cache, host)

        def prepare(plan):
            poison(plan)
            return prepare_inputs(plan)

        def move(plan):
            move_blocks(plan)
            poison(plan)

        runner.prepare_inputs, runner._move_blocks = prepare, move

    def check_null_block(self):
        """Fail if anything was written into the null block, which padding reads."""
        for runner in self.runners:
            assert not runner.kv_cache.data[:, :, 0].any()


@torch.inference_mode()
def write_nan(kv_cache, block_ids):
    """Let all numbers of these blocks be NaN. In int8 there is none: their scales are."""
    if kv_cache.scales is not None:
        kv_cache.scales[:, :, block_ids] = torch.nan
    is_float = kv_cache.data.is_floating_point()
    kv_cache.data[:, :, block_ids] = torch.nan if is_float else 255  # of both kinds of float8
    if kv_cache.draft is not None:
        write_nan(kv_cache.draft, block_ids)
