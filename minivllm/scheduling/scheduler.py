"""Scheduler: who runs next? Running sequences first, then waiting ones, under one token budget.

There is no prefill phase and no decode phase. Every sequence has tokens and computed tokens, and a
step lets the second catch up with the first. (vLLM: vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from minivllm.kv.manager import KVCacheManager
from minivllm.logger import init_logger
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.output import NewRequestData, SchedulerOutput
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy
from minivllm.trace import Finished, Preempted, RequestAdded, Sampled, Scheduled, Trace

logger = init_logger(__name__)


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
        find_stop_string: called with a sequence that got a token; says which of its stop strings
            its text now holds. (Nothing in this room knows text.)
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
        find_stop_string: Callable[[Sequence], str | None] = lambda seq: None,
        trace: Trace | None = None,
    ):
        self.kv_manager = kv_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.policy = policy or FCFSPolicy()
        self.find_stop_string = find_stop_string
        self.trace = trace
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.waiting: list[Sequence] = []  # by the policy's key, the next one first
        self.running: list[Sequence] = []  # in order of admission
        self.finished_req_ids: list[str] = []  # what the next plan tells the runner to forget
        self.num_preemptions = 0
        self._num_arrived = 0

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        n, limit = len(request.prompt_token_ids), self.max_model_len
        if request.request_id in self.requests:
            raise ValueError(f"request_id {request.request_id!r} is in use; choose another.")
        if n == 0:
            raise ValueError("the prompt is empty; it must have at least one token.")
        if n >= limit:
            raise ValueError(
                f"the prompt has {n} tokens, but max_model_len is {limit} and at least one token "
                f"must be left for the output; shorten it to {limit - 1} or raise max_model_len."
            )
        if request.priority != 0 and not self.policy.uses_priority:
            raise ValueError(
                f"priority is {request.priority}, but scheduling_policy is not 'priority'; "
                "choose that policy or leave the priority at 0."
            )
        params = request.sampling_params
        longest = limit if params.max_tokens is None else min(limit, n + params.max_tokens)
        if not self.kv_manager.can_ever_fit(longest - 1):  # the last token has no K and V
            pool, size = self.kv_manager.block_pool, self.kv_manager.block_size
            raise ValueError(
                f"the request can grow to {longest} tokens, but the whole KV cache holds "
                f"{pool.num_usable_blocks * size} ({pool.num_usable_blocks} blocks of {size}); "
                "lower max_tokens or enlarge the cache."
            )

    def add_request(self, request: Request) -> None:
        """Let a request wait, at the place in the queue that the policy gives it.

        Raises:
            ValueError: if it could never run; see ``check_request``.
        """
        self.check_request(request)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request
        index = self._enqueue(request.seq)
        if self.trace is not None:
            prompt = tuple(request.prompt_token_ids)
            self.trace.record(RequestAdded, request.request_id, prompt, index)

    def schedule(self) -> SchedulerOutput:
        """Plan one step: which sequences compute how many tokens, into which blocks."""
        if self.trace is not None:
            self.trace.start_step()
        plan = SchedulerOutput()
        self.budget = self.max_num_batched_tokens
        may_admit = self.policy.may_admit(self.running)
        if self.policy.prefill_first and may_admit:
            self._admit_waiting(plan)
        if not (self.policy.prefill_first and plan.num_scheduled_tokens):
            self._continue_running(plan)
            # A step that had to preempt has no room to give away.
            if may_admit and not plan.preempted_req_ids:
                self._admit_waiting(plan)
        plan.finished_req_ids, self.finished_req_ids = self.finished_req_ids, []
        if self.trace is not None:
            self._trace_plan(plan)
        return plan

    def _continue_running(self, plan: SchedulerOutput) -> None:
        """Whoever runs goes on, in order of admission, as far as the budget reaches."""
        index = 0
        while index < len(self.running) and self.budget > 0:
            seq = self.running[index]
            num_new = min(
                seq.num_tokens - seq.num_computed_tokens,
                self.max_model_len - 1 - seq.num_computed_tokens,
            )
            if num_new > 1:
                num_new = self._cap(num_new)
            # No room? Somebody gives way, until it fits or it has given way itself.
            while (new_ids := self.kv_manager.allocate_slots(seq, num_new)) is None:
                victim = self.policy.victim(self.running)
                index -= self.running.index(victim) < index  # it stood before us
                self._preempt(victim, plan)
                if victim is seq:
                    return
            self._put_into(plan, seq, num_new, new_ids)
            index += 1

    def _admit_waiting(self, plan: SchedulerOutput) -> None:
        """Who waits is admitted while the budget lasts. Nobody overtakes the first in the queue."""
        while self.waiting and self.budget > 0 and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            hit = self.kv_manager.get_computed_blocks(seq)
            num_new = seq.num_tokens - len(hit) * self.kv_manager.block_size
            if not self.enable_chunked_prefill and num_new > self.budget:
                return
            # Its whole length must fit, though only a chunk is computed now: two half-admitted
            # prompts could otherwise starve each other.
            if not self.kv_manager.can_admit(seq, hit):
                return
            num_new = self._cap(num_new)
            self.kv_manager.admit(seq, hit)
            self.kv_manager.allocate_slots(seq, num_new)
            self.running.append(self.waiting.pop(0))
            request = seq.request
            if seq.status == RequestStatus.WAITING:
                request.num_cached_tokens = seq.num_computed_tokens
                plan.scheduled_new_reqs.append(
                    NewRequestData(
                        seq.seq_id, request.prompt_token_ids, request.sampling_params, request.seed
                    )
                )
            else:
                plan.resumed_req_ids.append(seq.seq_id)
            seq.status = RequestStatus.RUNNING
            self._put_into(plan, seq, num_new, self.kv_manager.get_block_ids(seq.seq_id))

    def update_from_output(self, plan: SchedulerOutput, sampled: dict[str, int]) -> list[Sequence]:
        """Append what the step sampled, and free at once what it finished.

        Args:
            plan: the step's plan.
            sampled: one token id for each sequence that caught up, by sequence id.

        Returns:
            The sequences that got a token in this step.
        """
        updated = []
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            request = self.requests.get(seq_id)
            if request is None:  # aborted while the step was on its way
                continue
            seq = request.seq
            seq.num_computed_tokens += num_new
            token_id = sampled.get(seq_id)
            if token_id is None:  # a chunk that did not reach the end of the prompt
                continue
            seq.token_ids.append(token_id)
            if self.trace is not None:
                self.trace.record(Sampled, seq_id, token_id)
            updated.append(seq)
            self._finish_if_over(seq, token_id)
        if self.trace is not None:
            self.trace.end_step()
        return updated

    def finish_request(self, request_id: str, status: RequestStatus, stop_reason=None) -> None:
        """End a request, wherever it is, and free its blocks. An unknown id is ignored."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        seq = request.seq
        (self.running if seq.status == RequestStatus.RUNNING else self.waiting).remove(seq)
        seq.status, seq.stop_reason = status, stop_reason
        self.kv_manager.free(seq)
        self.finished_req_ids.append(request_id)
        if self.trace is not None:
            self.trace.record(Finished, seq.seq_id, status.finish_reason)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless queues, requests and blocks tell the same story."""
        self.kv_manager.check_integrity()
        queued = [seq.seq_id for seq in (*self.running, *self.waiting)]
        assert sorted(queued) == sorted(self.requests), f"{queued} != {list(self.requests)}"
        running = {seq.seq_id for seq in self.running}
        assert set(self.kv_manager.block_tables) == running, "only running sequences hold blocks"
        assert len(running) <= self.max_num_seqs
        for seq in self.running:
            held = len(self.kv_manager.block_tables[seq.seq_id].blocks)
            assert seq.num_computed_tokens <= held * self.kv_manager.block_size, seq

    # -- one idea each -------------------------------------------------------------------------

    def _cap(self, num_new: int) -> int:
        """How much of this a step may compute: a long prompt leaves room for others, if any."""
        threshold = self.long_prefill_token_threshold
        if 0 < threshold < num_new and len(self.requests) > 1:
            num_new = threshold
        return min(num_new, self.budget)

    def _put_into(
        self, plan: SchedulerOutput, seq: Sequence, num_new: int, new_ids: list[int]
    ) -> None:
        plan.num_scheduled_tokens[seq.seq_id] = num_new
        plan.num_computed_tokens[seq.seq_id] = seq.num_computed_tokens
        if new_ids:
            plan.new_block_ids[seq.seq_id] = new_ids
        self.budget -= num_new

    def _preempt(self, seq: Sequence, plan: SchedulerOutput) -> None:
        """Free all its blocks; it comes back by its place in the queue and computes anew."""
        self.budget += plan.num_scheduled_tokens.pop(seq.seq_id, 0)  # it may be in this plan
        plan.num_computed_tokens.pop(seq.seq_id, None)
        plan.new_block_ids.pop(seq.seq_id, None)
        plan.preempted_req_ids.append(seq.seq_id)
        self.running.remove(seq)
        self.kv_manager.free(seq)
        seq.status = RequestStatus.PREEMPTED
        seq.num_computed_tokens = 0
        seq.request.num_preemptions += 1
        self.num_preemptions += 1
        index = self._enqueue(seq)
        if self.trace is not None:
            self.trace.record(Preempted, seq.seq_id, index)
        logger.warning(
            "Request %s is preempted because there is not enough KV cache; this costs a "
            "recomputation. A larger cache or a smaller max_num_seqs avoids it. "
            "Preemptions so far: %d",
            seq.seq_id,
            self.num_preemptions,
        )

    def _enqueue(self, seq: Sequence) -> int:
        """Let a sequence wait where its key says; returns how many stand before it."""
        key = self.policy.key
        index = bisect_right(self.waiting, key(seq.request), key=lambda s: key(s.request))
        self.waiting.insert(index, seq)
        return index

    def _trace_plan(self, plan: SchedulerOutput) -> None:
        new = {data.seq_id for data in plan.scheduled_new_reqs}
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            kind = "resumed" if seq_id in plan.resumed_req_ids else "running"
            kind = "new" if seq_id in new else kind
            computed = plan.num_computed_tokens[seq_id]
            samples = computed + num_new == self.requests[seq_id].seq.num_tokens
            self.trace.record(Scheduled, seq_id, kind, computed, num_new, samples)
        self.trace.plan_step()

    def _finish_if_over(self, seq: Sequence, token_id: int) -> None:
        """End-of-sequence token, stop token, stop string, length: the first that holds counts."""
        request, params = seq.request, seq.request.sampling_params
        stopped, capped = RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED
        if token_id in request.eos_token_ids and not params.ignore_eos:
            self.finish_request(request.request_id, stopped)
        elif params.stop_token_ids and token_id in params.stop_token_ids:
            self.finish_request(request.request_id, stopped, stop_reason=token_id)
        elif (stop_string := self.find_stop_string(seq)) is not None:
            self.finish_request(request.request_id, stopped, stop_reason=stop_string)
        elif seq.num_output_tokens == params.max_tokens or seq.num_tokens >= self.max_model_len:
            self.finish_request(request.request_id, capped)
