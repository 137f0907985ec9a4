"""Scheduler: who runs next? Running sequences first, then waiting ones, under one token budget.

There is no prefill phase and no decode phase. Every sequence has tokens and computed tokens, and a
step lets the second catch up with the first. (vLLM: vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from minivllm.kv.manager import KVCacheManager
from minivllm.records import (
    Finished,
    Forked,
    RequestAdded,
    Sampled,
    Scheduled,
)
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.beams import Beams, advance_beams
from minivllm.scheduling.integrity import check_integrity
from minivllm.scheduling.limits import check_limits
from minivllm.scheduling.output import (
    NO_TOKEN,
    BeamMove,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy
from minivllm.scheduling.preemption import preempt
from minivllm.scheduling.stop import check_stop
from minivllm.trace import Trace


class Scheduler:
    """One token budget for all; preemption by recomputation when the blocks run out.

    Args:
        kv_manager: where blocks come from.
        max_num_batched_tokens: how many tokens one step may compute.
        max_num_seqs: how many sequences may run at once.
        max_model_len: the longest sequence, prompt and output.
        enable_chunked_prefill: False never splits what a sequence has to catch up with when it is
            admitted.
        long_prefill_token_threshold: the most that one sequence computes in a step while there are
            others; 0 is no limit.
        policy: who comes first and who gives way; None for first come, first served.
        preemption_mode: "recompute" or "swap"; None recomputes a request with one sequence and
            swaps one with several.
        append_text: see ``check_stop``; nothing in this room knows text.
        trace: listens to every decision, if given.
    """

    def __init__(
        self,
        kv_manager: KVCacheManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        policy: SchedulingPolicy | None = None,
        preemption_mode: str | None = None,
        append_text: Callable[[Sequence], str | None] = lambda seq: None,
        trace: Trace | None = None,
    ):
        self.kv_manager = kv_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.policy = policy or FCFSPolicy()
        self.preemption_mode = preemption_mode
        self.append_text = append_text
        self.trace = trace
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.sequences: dict[str, Sequence] = {}  # theirs, those that are not finished
        self.waiting: list[Request] = []  # by the policy's key, the next one first
        self.swapped: list[Request] = []  # on the host; by the policy's key, too
        self.running: list[Sequence] = []  # in order of admission; siblings side by side
        self.finished_req_ids: list[str] = []  # what the next plan tells the runner to forget
        self.beams: dict[str, Beams] = {}  # by request id, of those that search
        self.beam_moves: list[BeamMove] = []  # what the next plan tells the runner of them
        self.num_preemptions = 0
        self.budget = max_num_batched_tokens  # what is left of it in the step being planned
        self._num_arrived = 0
        self._ids_in_use: set[str] = set()  # of all sequences, those to be forked included

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        for seq_id in request.seq_ids:
            if seq_id in self._ids_in_use:
                raise ValueError(f"request_id {seq_id!r} is in use; choose another.")
        check_limits(request, self)

    def add_request(self, request: Request) -> None:
        """Let a request wait, at the place in the queue that the policy gives it.

        Raises:
            ValueError: if it could never run; see ``check_request``.
        """
        self.check_request(request)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self.sequences[request.request_id] = request.seqs[0]
        self._ids_in_use.update(request.seq_ids)
        if request.beam_params is not None:
            longest = len(request.prompt_token_ids) + request.sampling_params.max_tokens
            self.beams[request.request_id] = Beams(
                request.beam_params, request.eos_token_ids, min(longest, self.max_model_len)
            )
        index = self.enqueue(request, self.waiting)
        if self.trace is not None:
            prompt = tuple(request.prompt_token_ids)
            self.trace.record(RequestAdded, request.request_id, prompt, index, self.trace.now())

    def schedule(self) -> SchedulerOutput:
        """Plan one step: which sequences compute how many tokens, into which blocks."""
        if self.trace is not None:
            self.trace.start_step()
        scheduler_output = SchedulerOutput()
        self.budget = self.max_num_batched_tokens
        may_admit = self.policy.may_admit(self.running)
        if self.policy.prefill_first and may_admit:
            self._admit_waiting(scheduler_output)
        if not (self.policy.prefill_first and scheduler_output.num_scheduled_tokens):
            self._continue_running(scheduler_output)
            # A step that had to preempt has no room to give away.
            if not scheduler_output.preempted_req_ids:
                self._swap_in(scheduler_output)
                if may_admit:
                    self._admit_waiting(scheduler_output)
        for seq_id in (
            *(new.seq_id for new in scheduler_output.scheduled_new_reqs),
            *scheduler_output.resumed_req_ids,
        ):
            scheduler_output.new_block_ids[seq_id] = self.kv_manager.get_block_ids(seq_id)
        scheduler_output.finished_req_ids, self.finished_req_ids = self.finished_req_ids, []
        scheduler_output.beam_moves, self.beam_moves = self.beam_moves, []
        if self.trace is not None:
            self._trace_plan(scheduler_output)
        return scheduler_output

    def _continue_running(self, scheduler_output: SchedulerOutput) -> None:
        """Whoever runs goes on, in order of admission, as far as the budget reaches."""
        index = 0
        while index < len(self.running) and self.budget > 0:
            seq = self.running[index]
            num_new = self._num_to_compute(seq, scheduler_output)
            if num_new == 0:  # a beam that waits for the others
                index += 1
                continue
            if num_new > 1:
                if num_new > self.budget and not self.enable_chunked_prefill:
                    return  # a sibling that could not begin with the others
                num_new = self._cap(num_new)
            # No room? Somebody gives way, until it fits or its own request has given way.
            while True:
                new_ids = self.kv_manager.allocate_slots(
                    seq, num_new, scheduler_output.kv_cache_block_copies
                )
                if new_ids is not None:
                    break
                preempt(self, self.policy.victim(self.running).request, scheduler_output)
                if seq.status != RequestStatus.RUNNING:
                    return
                index = self.running.index(seq)  # somebody before it may have gone
            self._put_into(scheduler_output, seq, num_new, new_ids)
            index += 1

    def _admit_waiting(self, scheduler_output: SchedulerOutput) -> None:
        """Who waits is admitted while the budget lasts. Nobody overtakes the first in the queue."""
        while self.waiting and self.budget > 0 and not self.swapped:
            if not (
                self._may_run(self.waiting[0]) and self._admit(self.waiting[0], scheduler_output)
            ):
                return
            self.waiting.pop(0)

    def _swap_in(self, scheduler_output: SchedulerOutput) -> None:
        """Who is on the host comes back before anyone new begins, and goes on where it was."""
        while self.swapped and self.budget > 0 and self._may_run(self.swapped[0]):
            seqs = self.swapped[0].unfinished_seqs
            if not self.kv_manager.can_swap_in(seqs):
                return
            self.swapped.pop(0)
            scheduler_output.swaps_in += self.kv_manager.swap_in(seqs)
            self.running += seqs
            for seq in seqs:
                self._begin(
                    seq, self._cap(self._num_to_compute(seq, scheduler_output)), scheduler_output
                )

    def _may_run(self, request: Request) -> bool:
        """Would all its sequences, those to come included, still fit under ``max_num_seqs``?"""
        to_come = sum(seq.request.num_forks_to_come for seq in self.running)
        siblings = len(request.unfinished_seqs) + request.num_forks_to_come
        return len(self.running) + to_come + siblings <= self.max_num_seqs

    def _admit(self, request: Request, scheduler_output: SchedulerOutput) -> bool:
        """Admit all sequences of a request, or give all blocks back and return False.

        All that is known of each must fit, though only a chunk is computed now: two half-admitted
        prompts could otherwise starve each other.
        """
        manager, admitted, promised = self.kv_manager, [], 0
        for seq in request.unfinished_seqs:  # several only after a preemption
            hit = manager.get_computed_blocks(seq)
            num_new = seq.num_tokens - len(hit) * manager.block_size
            fits = promised + manager.num_blocks_to_admit(seq, hit) <= (
                manager.block_pool.num_free_blocks
            )
            too_long = num_new > self.budget and not self.enable_chunked_prefill
            if not fits or (too_long and not admitted):
                for sibling in reversed(admitted):
                    self.unschedule(sibling, scheduler_output)
                    manager.free(sibling)
                    sibling.num_computed_tokens = 0
                return False
            manager.admit(seq, hit)
            admitted.append(seq)
            num_new = 0 if too_long else self._cap(self._num_to_compute(seq, scheduler_output))
            self._begin(seq, num_new, scheduler_output)
            promised += manager.num_blocks_missing(seq)
        for seq in admitted:
            manager.record_prefix_cache_query(seq)
        self.running += admitted
        return True

    def _begin(self, seq: Sequence, num_new: int, scheduler_output: SchedulerOutput) -> None:
        """Put an admitted sequence into the plan; behind its siblings there may be no budget."""
        request = seq.request
        if seq.status == RequestStatus.WAITING:
            request.num_cached_tokens = seq.num_computed_tokens
            request.metrics.first_scheduled_time = time.monotonic()
            scheduler_output.scheduled_new_reqs.append(
                NewRequestData(
                    seq.seq_id, request.prompt_token_ids, request.sampling_params, request.seed
                )
            )
        else:
            scheduler_output.resumed_req_ids.append(seq.seq_id)
        seq.status = RequestStatus.RUNNING
        if num_new > 0:
            self.kv_manager.allocate_slots(seq, num_new, scheduler_output.kv_cache_block_copies)
            self._put_into(scheduler_output, seq, num_new, [])

    def update_from_output(
        self,
        scheduler_output: SchedulerOutput,
        sampled: dict[str, int],
        logprobs: Mapping[str, TokenLogprobs] = MappingProxyType({}),
    ) -> list[Sequence]:
        """Append what the step sampled, and free at once what it finished.

        Args:
            plan: the step's plan.
            sampled: one token id for each sequence that caught up, by sequence id.
            logprobs: for each beam that caught up; its likeliest next tokens are looked for there.

        Returns:
            The sequences that got a token in this step.
        """
        updated = []
        searches: dict[Request, None] = {}
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            seq = self.sequences.get(seq_id)
            if seq is None:  # aborted while the step was on its way
                continue
            seq.num_computed_tokens += num_new
            if seq_id not in sampled:  # a chunk that did not reach the end of the prompt
                continue
            if seq.request.beam_params is not None:
                searches[seq.request] = None
                continue
            siblings = [seq]
            if seq_id in scheduler_output.forks:
                siblings += self.fork(seq, range(1, seq.request.n))
            for sibling in siblings:
                token_id = sampled[sibling.seq_id]
                if token_id == NO_TOKEN or not sibling.grammar_accepts(token_id):
                    self.finish(sibling, RequestStatus.FINISHED_ERROR)
                    continue
                sibling.token_ids.append(token_id)
                if self.trace is not None:
                    self.trace.record(Sampled, sibling.seq_id, token_id)
                end = check_stop(sibling, self.append_text, self.max_model_len)
                if end is not None:
                    self.finish(sibling, *end)
            updated += siblings
        for request in searches:
            updated += advance_beams(self, request, logprobs)
        if self.trace is not None:
            self.trace.end_step()
        return updated

    def finish_request(self, request_id: str, status: RequestStatus) -> None:
        """End all sequences of a request, wherever they are. An unknown id is ignored."""
        if request_id in self.requests:
            for seq in self.requests[request_id].unfinished_seqs:
                self.finish(seq, status)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless queues, requests and blocks tell the same story."""
        check_integrity(self)

    # -- one idea each -------------------------------------------------------------------------

    def _cap(self, num_new: int) -> int:
        """How much of this a step may compute: a long prompt leaves room for others, if any."""
        threshold = self.long_prefill_token_threshold
        if 0 < threshold < num_new and len(self.requests) > 1:
            num_new = threshold
        return min(num_new, self.budget)

    def _num_to_compute(self, seq: Sequence, scheduler_output: SchedulerOutput) -> int:
        """What a sequence lacks; but beams take the step to their next tokens all together."""
        computed = seq.num_computed_tokens
        num_new = min(seq.num_tokens, self.max_model_len - 1) - computed
        if seq.request.beam_params is not None:
            live = seq.request.unfinished_seqs
            behind = any(s.num_tokens - s.num_computed_tokens > 1 for s in live)
            led = live[0].seq_id in scheduler_output.num_scheduled_tokens
            leads = seq is live[0] and self.budget >= len(live)
            num_new -= len(live) > 1 and (behind or not (led or leads))
        return num_new

    def _put_into(
        self, scheduler_output: SchedulerOutput, seq: Sequence, num_new: int, new_ids: list[int]
    ) -> None:
        scheduler_output.num_scheduled_tokens[seq.seq_id] = num_new
        scheduler_output.num_computed_tokens[seq.seq_id] = seq.num_computed_tokens
        if new_ids:
            scheduler_output.new_block_ids[seq.seq_id] = new_ids
        request = seq.request
        samples = request.num_forks_to_come and request.beam_params is None
        if samples and seq.num_computed_tokens + num_new == seq.num_tokens:
            scheduler_output.forks[seq.seq_id] = request.seq_ids[1:]
        self.budget -= num_new

    def fork(self, seq: Sequence, indices: Iterable[int]) -> list[Sequence]:
        """Siblings that share all a sequence has, now running beside it."""
        request, children = seq.request, []
        for index in indices:
            child = seq.fork(index)
            self.kv_manager.fork(seq, child)
            self.sequences[child.seq_id] = child
            children.append(child)
            if self.trace is not None:
                self.trace.record(Forked, seq.seq_id, child.seq_id)
        place = self.running.index(request.seqs[-1]) + 1
        self.running[place:place] = children
        request.seqs += children
        return children

    def unschedule(self, seq: Sequence, scheduler_output: SchedulerOutput) -> None:
        """Take a sequence out of the plan, if it is there."""
        self.budget += scheduler_output.unschedule(seq.seq_id)
        seq.status = RequestStatus.PREEMPTED

    def enqueue(self, request: Request, queue: list[Request]) -> int:
        """Let a request wait where its key says; returns how many stand before it."""
        index = bisect_right(queue, self.policy.key(request), key=self.policy.key)
        queue.insert(index, request)
        return index

    def _trace_plan(self, scheduler_output: SchedulerOutput) -> None:
        kinds = {data.seq_id: "new" for data in scheduler_output.scheduled_new_reqs}
        kinds |= dict.fromkeys(scheduler_output.resumed_req_ids, "resumed")
        for seq in self.running:
            num_new = scheduler_output.num_scheduled_tokens.get(seq.seq_id, 0)
            kind = kinds.get(seq.seq_id, "running")
            if num_new > 0 or kind == "resumed":
                computed = seq.num_computed_tokens
                samples = computed + num_new == seq.num_tokens
                self.trace.record(Scheduled, seq.seq_id, kind, computed, num_new, samples)
        self.trace.plan_step()

    def finish(self, seq: Sequence, status: RequestStatus, stop_reason=None) -> None:
        """End one sequence and free its blocks; with the last one its request is over."""
        request = seq.request
        if seq.status == RequestStatus.RUNNING:
            self.running.remove(seq)
        seq.status, seq.stop_reason = status, stop_reason
        self.kv_manager.free(seq)
        del self.sequences[seq.seq_id]
        self.finished_req_ids.append(seq.seq_id)
        self.beam_moves = [move for move in self.beam_moves if move.seq_id != seq.seq_id]
        if self.trace is not None:
            self.trace.record(Finished, seq.seq_id, status.finish_reason)
        if not request.unfinished_seqs:
            self.beams.pop(request.request_id, None)
            del self.requests[request.request_id]
            self._ids_in_use.difference_update(request.seq_ids)
            for queue in (self.waiting, self.swapped):
                if request in queue:
                    queue.remove(request)
