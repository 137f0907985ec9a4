"""Scheduler: who runs next? Running sequences first, then waiting ones, under one token budget.

There is no prefill phase and no decode phase. Every sequence has tokens and computed tokens, and a
step lets the second catch up with the first. (vLLM: vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minivllm.kv.manager import KVCacheManager
from minivllm.logger import init_logger
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.output import NewRequestData, SchedulerOutput
from minivllm.trace import Finished, Preempted, RequestAdded, Sampled, Scheduled, Trace

logger = init_logger(__name__)


class Scheduler:
    """First come, first served; preemption by recomputation when the blocks run out.

    Args:
        kv_manager: where blocks come from.
        max_num_batched_tokens: how many tokens one step may compute.
        max_num_seqs: how many sequences may run at once.
        max_model_len: the longest sequence, prompt and output.
        enable_chunked_prefill: False never splits what a sequence has to catch up with when it is
            admitted.
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
        find_stop_string: Callable[[Sequence], str | None] = lambda seq: None,
        trace: Trace | None = None,
    ):
        self.kv_manager = kv_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.find_stop_string = find_stop_string
        self.trace = trace
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.waiting: deque[Sequence] = deque()  # the next one first
        self.running: list[Sequence] = []  # in order of admission
        self.finished_req_ids: list[str] = []  # what the next plan tells the runner to forget
        self.num_preemptions = 0

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
        """Let a request wait at the end of the queue.

        Raises:
            ValueError: if it could never run; see ``check_request``.
        """
        self.check_request(request)
        self.requests[request.request_id] = request
        self.waiting.append(request.seq)
        if self.trace is not None:
            self.trace.record(RequestAdded, request.request_id, tuple(request.prompt_token_ids))

    def schedule(self) -> SchedulerOutput:
        """Plan one step: which sequences compute how many tokens, into which blocks."""
        if self.trace is not None:
            self.trace.start_step()
        plan = SchedulerOutput()
        budget = self.max_num_batched_tokens
        preempted: list[Sequence] = []

        # 1. Whoever runs goes on, in order of admission.
        index = 0
        while index < len(self.running) and budget > 0:
            seq = self.running[index]
            num_new = min(self._num_to_compute(seq), budget)
            # 2. No room? The last one admitted gives way, until it fits or is itself the last.
            while (new_ids := self._allocate(seq, num_new)) is None:
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is seq:
                    break
            if new_ids is None:
                break
            self._put_into(plan, seq, num_new, new_ids)
            budget -= num_new
            index += 1

        # 3. Who waits is admitted while the budget lasts. Nobody overtakes the first in the queue,
        #    and a step that had to preempt has no room to give away.
        while self.waiting and not preempted and budget > 0:
            seq = self.waiting[0]
            num_new = self._num_to_compute(seq)
            if len(self.running) == self.max_num_seqs:
                break
            if num_new > budget and not self.enable_chunked_prefill:
                break
            # Its whole length must fit, though only a chunk is computed now: two half-admitted
            # prompts could otherwise starve each other.
            if not self.kv_manager.can_fit(seq.num_tokens):
                break
            num_new = min(num_new, budget)
            new_ids = self._allocate(seq, num_new)
            self.running.append(self.waiting.popleft())
            self._put_into(plan, seq, num_new, new_ids)
            budget -= num_new

        plan.preempted_req_ids = [seq.seq_id for seq in preempted]
        plan.finished_req_ids, self.finished_req_ids = self.finished_req_ids, []
        if self.trace is not None:
            self.trace.plan_step()
        return plan

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
        self.kv_manager.free(seq.seq_id)
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

    def _num_to_compute(self, seq: Sequence) -> int:
        return min(
            seq.num_tokens - seq.num_computed_tokens,
            self.max_model_len - 1 - seq.num_computed_tokens,
        )

    def _allocate(self, seq: Sequence, num_new: int) -> list[int] | None:
        return self.kv_manager.allocate_slots(seq.seq_id, seq.num_computed_tokens + num_new)

    def _put_into(
        self, plan: SchedulerOutput, seq: Sequence, num_new: int, new_ids: list[int]
    ) -> None:
        seq_id, computed = seq.seq_id, seq.num_computed_tokens
        kind = "running"
        if seq.status == RequestStatus.WAITING:
            kind = "new"
            request = seq.request
            plan.scheduled_new_reqs.append(
                NewRequestData(
                    seq_id, request.prompt_token_ids, request.sampling_params, request.seed
                )
            )
        elif seq.status == RequestStatus.PREEMPTED:
            kind = "resumed"
        seq.status = RequestStatus.RUNNING
        plan.num_scheduled_tokens[seq_id] = num_new
        plan.num_computed_tokens[seq_id] = computed
        if new_ids:
            plan.new_block_ids[seq_id] = new_ids
        if self.trace is not None:
            samples = computed + num_new == seq.num_tokens
            self.trace.record(Scheduled, seq_id, kind, computed, num_new, samples)

    def _preempt(self, seq: Sequence) -> None:
        """Free all its blocks; it comes back first and computes its tokens again."""
        self.kv_manager.free(seq.seq_id)
        seq.status = RequestStatus.PREEMPTED
        seq.num_computed_tokens = 0
        seq.request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(seq)
        if self.trace is not None:
            self.trace.record(Preempted, seq.seq_id)
        logger.warning(
            "Request %s is preempted because there is not enough KV cache; this costs a "
            "recomputation. A larger cache or a smaller max_num_seqs avoids it. "
            "Preemptions so far: %d",
            seq.seq_id,
            self.num_preemptions,
        )

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
