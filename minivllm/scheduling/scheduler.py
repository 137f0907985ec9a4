"""Scheduler: plans each step. Running sequences first, then waiting, under one token budget.

There is no prefill phase and no decode phase. Every sequence has tokens and computed tokens, and a
step lets the second catch up with the first. (vLLM: vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.metrics.stats import SchedulerStats
from minivllm.records import Verified
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.books import Books
from minivllm.scheduling.decoding import SAMPLING, Decoding
from minivllm.scheduling.output import ModelRunnerOutput, NewRequestData, SchedulerOutput
from minivllm.scheduling.preemption import Preemptor
from minivllm.trace import Trace


class Scheduler(Books):
    """Continuous batching: one token budget per step, preemption when the blocks run out.

    Args:
        config: how much a step may hold, the policy and the way of preemption.
        kv_manager: where blocks come from.
        trace: listens to every decision, if given.
    """

    def __init__(
        self, config: SchedulerConfig, kv_manager: KVCacheManager, trace: Trace | None = None
    ):
        super().__init__(config, kv_manager, trace)
        kv_manager.num_lookahead_tokens = config.num_lookahead_tokens
        kv_manager.max_num_slots = config.max_model_len
        self.preemptor = Preemptor(kv_manager, config.preemption_mode, trace)
        # A scheduled sequence takes these beside its tokens: a draft model computes in them.
        self._num_drafting_slots = config.num_drafting_slots
        self.token_budget = 0  # what one more sequence may compute in the step that is planned
        self.spec_decoding_stats: SpecDecodingStats | None = None  # of the last step, with drafts
        self._num_planned = 0

    # -- one step, from top to bottom --------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Plan one step: which sequences compute how many tokens, into which blocks.

        Whatever raises in here (a policy of a user's, say), the books are as before the step.
        """
        with self._planning() as output:
            may_admit = self.policy.may_admit(self.running)
            if self.policy.prefill_first and may_admit:
                self._admit_waiting(output)
            if not (self.policy.prefill_first and output.num_scheduled_tokens):
                # Phase 1: running sequences go on.
                self._continue_running(output)
                # Phase 2: others join them. A step that had to preempt has no room for them.
                if not output.preempted_req_ids:
                    self._swap_in(output)
                    if may_admit:
                        self._admit_waiting(output)
        return output

    def _continue_running(self, output: SchedulerOutput) -> None:
        """Schedule running sequences, in admission order, until the token budget is used up."""
        running, copies, index = self.running, output.kv_cache_block_copies, 0
        while index < len(running) and self.token_budget > 0:
            seq = running[index]
            num_new = self._num_new_tokens(seq, output)
            if num_new > 1:
                num_left = seq.num_tokens - seq.num_computed_tokens
                if num_left > self.token_budget and not self.config.enable_chunked_prefill:
                    return  # a sibling that could not begin with the others
                num_new = self._limit_chunk(num_new)
            if num_new > 0:  # else a beam that waits for the others
                # Out of blocks: preempt until it fits, or this request is itself the victim.
                while (new_ids := self.kv_manager.allocate_slots(seq, num_new, copies)) is None:
                    self._preempt(self.policy.victim(running).request, output)
                    if seq.status != RequestStatus.RUNNING:
                        return
                    index = running.index(seq)  # a sequence before it may have gone
                self._add_to_output(output, seq, num_new, new_ids)
            index += 1

    def _admit_waiting(self, output: SchedulerOutput) -> None:
        """Admit waiting requests in queue order; stop at the first that does not fit."""
        while self.waiting and self.token_budget > 0 and not self.swapped:
            request = self.waiting[0]
            if not (self._may_run(request) and self._admit(request, output)):
                return
            self.undo_log.pop(self.waiting, 0)

    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        """Admit all sequences of a request, or give all blocks back and return False.

        All that is known of each must fit, though only a chunk is computed now: two half-admitted
        prompts could otherwise starve each other.
        """
        manager, promised = self.kv_manager, 0
        admitted: list[Sequence] = []
        for seq in request.unfinished_seqs:  # several only after a preemption
            hit = manager.get_computed_blocks(seq)
            num_new = seq.num_tokens_with_spec - len(hit) * manager.block_size
            fits = manager.can_fit_full_sequence(seq, hit, self._limit_chunk(num_new), promised)
            too_long = num_new > self.token_budget and not self.config.enable_chunked_prefill
            if not fits or (too_long and not admitted):
                self._withdraw(admitted, output)
                return False
            manager.allocate_new_computed_blocks(seq, hit)
            admitted.append(seq)
            num_new = 0 if too_long else self._limit_chunk(self._num_new_tokens(seq, output))
            self._start(seq, num_new, output)
            promised += manager.num_missing_blocks(seq)
        for seq in admitted:
            manager.record_prefix_cache_query(seq)
            self.undo_log.insert(self.running, len(self.running), seq)
        return True

    def _add_to_output(
        self, output: SchedulerOutput, seq: Sequence, num_new: int, new_ids: list[int]
    ) -> None:
        seq_id, request = seq.seq_id, seq.request
        output.num_scheduled_tokens[seq_id] = num_new
        output.num_computed_tokens[seq_id] = seq.num_computed_tokens
        if new_ids:
            output.new_block_ids[seq_id] = new_ids
        forks_to_come = request.n > len(request.seqs)
        if forks_to_come and seq.num_computed_tokens + num_new >= seq.num_tokens:
            output.forks.update(request.decoding.forks_at_prompt_end(seq))
        if seq.spec_token_ids:
            self._add_drafts(output, seq, num_new)
        self.token_budget -= num_new + self._num_drafting_slots

    def _start(self, seq: Sequence, num_new: int, output: SchedulerOutput) -> None:
        """Start an admitted sequence; after its siblings there may be no budget left for it."""
        request = seq.request
        if seq.status == RequestStatus.WAITING:
            self.undo_log.set(request, "num_cached_tokens", seq.num_computed_tokens)
            self.undo_log.set(request.metrics, "first_scheduled_time", time.monotonic())
            output.scheduled_new_reqs.append(NewRequestData.from_request(request))
        else:
            output.resumed_req_ids.append(seq.seq_id)
        self.undo_log.set(seq, "status", RequestStatus.RUNNING)
        if num_new > 0:
            self.kv_manager.allocate_slots(seq, num_new, output.kv_cache_block_copies)
            self._add_to_output(output, seq, num_new, [])

    def _swap_in(self, output: SchedulerOutput) -> None:
        """Swap requests back in before admitting new ones; they resume where they were."""
        while self.swapped and self.token_budget > 0 and self._may_run(self.swapped[0]):
            seqs = self.swapped[0].unfinished_seqs
            if not self.preemptor.swapper.can_swap_in(seqs):
                return
            self.undo_log.pop(self.swapped, 0)
            output.swaps_in += self.preemptor.swapper.swap_in(seqs)
            for seq in seqs:
                self.undo_log.insert(self.running, len(self.running), seq)
                num_new = self._num_new_tokens(seq, output)
                self._start(seq, self._limit_chunk(num_new), output)

    def _add_drafts(self, output: SchedulerOutput, seq: Sequence, num_new: int) -> None:
        """Add the drafts among a sequence's scheduled tokens; those that do not fit are dropped."""
        num_drafts = seq.num_computed_tokens + num_new - seq.num_tokens
        if num_drafts > 0:
            drafts = seq.spec_token_ids[:num_drafts]
            output.scheduled_spec_decode_tokens[seq.seq_id] = drafts
        self.undo_log.set(seq, "spec_token_ids", [])

    def update_from_output(
        self, scheduler_output: SchedulerOutput, output: ModelRunnerOutput
    ) -> list[Sequence]:
        """Append the sampled tokens, finish sequences and free their blocks.

        Args:
            scheduler_output: what was planned.
            output: what the runner has computed.

        Returns:
            The sequences that got a token in this step.
        """
        sampled = output.sampled_token_ids
        self.undo_log.note(self._take_tokens_back, scheduler_output, sampled)
        stats = SpecDecodingStats(self.config.num_speculative_tokens)
        all_drafts = scheduler_output.scheduled_spec_decode_tokens
        advancing: dict[Decoding, list[Sequence]] = defaultdict(list, {SAMPLING: []})
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            seq = self.sequences.get(seq_id)
            if seq is None:  # aborted while the step was on its way
                continue
            seq.num_computed_tokens += num_new
            if seq_id not in sampled:  # a chunk that did not reach the end of the prompt
                continue
            if seq_id in all_drafts:  # K and V of a rejected one are where the next token's will be
                drafts, num_accepted = all_drafts[seq_id], len(sampled[seq_id]) - 1
                seq.num_computed_tokens -= len(drafts) - num_accepted
                stats.observe_draft(len(drafts), num_accepted)
                if self.trace is not None:
                    self.trace.record(Verified, seq_id, tuple(drafts), num_accepted)
            advancing[seq.request.decoding].append(seq)
        updated: list[Sequence] = []
        for decoding, seqs in advancing.items():
            updated += decoding.advance(seqs, output, self)
        if self.trace is not None:
            self.trace.end_step()
        self.kv_manager.commit()
        self.spec_decoding_stats = stats if stats.num_drafts else None
        return updated

    def roll_back(self, executed: bool = True) -> None:
        """Roll back a step that has failed: the books are as before it was planned.

        Args:
            executed: its forward pass may have written to the blocks that it was given. A sequence
                that had computed something in them is preempted, and it is no cache hit any more.
        """
        lost = self.kv_manager.roll_back(executed)
        for request in dict.fromkeys(seq.request for seq in self.running if seq.seq_id in lost):
            self._preempt(request, SchedulerOutput(), may_swap=False)

    # -- small steps -------------------------------------------------------------------------------

    @contextmanager
    def _planning(self) -> Iterator[SchedulerOutput]:
        """Context manager of a step's plan: if filling it raises, the books are as before."""
        self.undo_log.begin()
        try:
            if self.trace is not None:
                self.undo_log.note(self.trace.forget_step, len(self.trace.records))
                self.trace.start_step()
            output = SchedulerOutput(step=self._num_planned)
            self._num_planned += 1
            self.token_budget = self.config.max_num_batched_tokens - self._num_drafting_slots
            yield output
            self._complete(output)
        except BaseException:
            self.roll_back(executed=False)
            raise

    def _num_new_tokens(self, seq: Sequence, output: SchedulerOutput) -> int:
        """Tokens and drafts not yet computed, less those that the decoding holds back."""
        num_known = len(seq.token_ids) + len(seq.spec_token_ids)
        if num_known >= self.max_model_len:
            num_known = self.max_model_len - 1
        num_new = num_known - seq.num_computed_tokens
        decoding = seq.request.decoding
        if decoding.in_lockstep:
            slots = self._num_drafting_slots
            num_more = (self.token_budget + slots) // (1 + slots)  # that decode in this step
            num_new -= decoding.num_held_back(seq, output, num_more)
        return num_new

    def _limit_chunk(self, num_new: int) -> int:
        """Limit a chunk to the budget, and to the long prefill threshold beside other requests."""
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < num_new and len(self.requests) > 1:
            num_new = threshold
        return min(num_new, self.token_budget)

    def _preempt(self, request: Request, output: SchedulerOutput, may_swap: bool = True) -> None:
        """Preempt a request: swap its blocks to the host or free them, and requeue it."""
        victims = [seq for seq in self.running if seq.request is request]
        swapped = may_swap and self.preemptor.swap_out(victims, output)
        index = self._enqueue(request, self.swapped if swapped else self.waiting)
        for seq in victims:
            self.undo_log.pop(self.running, self.running.index(seq))
            self._unschedule(seq, output)
            output.preempted_req_ids.append(seq.seq_id)
            if not swapped:
                self.preemptor.free(seq, index if seq is victims[0] else None)
        self.preemptor.count(request, swapped)

    def _unschedule(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Remove a sequence from the step that is being planned, if it is in it."""
        num_scheduled = output.unschedule(seq.seq_id)
        if num_scheduled:
            self.token_budget += num_scheduled + self._num_drafting_slots
        self.undo_log.set(seq, "status", RequestStatus.PREEMPTED)
        self.undo_log.set(seq, "spec_token_ids", [])

    def _withdraw(self, admitted: list[Sequence], output: SchedulerOutput) -> None:
        """Undo the admission of sequences whose sibling did not fit."""
        for seq in reversed(admitted):
            self._unschedule(seq, output)
            self.kv_manager.free(seq)
            self.undo_log.set(seq, "num_computed_tokens", 0)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions so far."""
        return self.preemptor.num_preemptions

    def make_stats(self) -> SchedulerStats:
        """Make the SchedulerStats: queues and KV cache as they are now."""
        stats = SchedulerStats(
            num_running_reqs=len(self.requests) - len(self.waiting) - len(self.swapped),
            num_waiting_reqs=len(self.waiting) + len(self.swapped),
            num_swapped_reqs=len(self.swapped),
            kv_cache_usage=self.kv_manager.usage,
            num_preemptions=self.num_preemptions,
            spec_decoding_stats=self.spec_decoding_stats,
        )
        if self.swapped:
            stats.cpu_cache_usage = self.kv_manager.swap_space.usage
        if (cache := self.kv_manager.prefix_cache) is not None:
            stats.prefix_cache_queries = cache.stats.queries
            stats.prefix_cache_hits = cache.stats.hits
            stats.recent_prefix_cache_queries = cache.recent.queries
            stats.recent_prefix_cache_hits = cache.recent.hits
        return stats
