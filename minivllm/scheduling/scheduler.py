"""Scheduler: plans each step. Running sequences first, then waiting, under one token budget.

There is no prefill phase and no decode phase. Every sequence has tokens and computed tokens, and a
step lets the second catch up with the first. (vLLM: vllm/v1/core/sched/scheduler.py)
(notebooks 05, 06, 07)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.request_protocols import Beams
from minivllm.scheduling.beams import BeamSearch
from minivllm.scheduling.checkpoint import Checkpoint, reset
from minivllm.scheduling.drafts import add_drafts, give_back_rejected, set_drafts
from minivllm.scheduling.encoder_inputs import make_encoder_inputs
from minivllm.scheduling.forks import fork, plan_forks
from minivllm.scheduling.integrity import check_integrity
from minivllm.scheduling.limits import check_items, check_limits
from minivllm.scheduling.lora_slots import LoRASlots
from minivllm.scheduling.output import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from minivllm.scheduling.policies import make_policy
from minivllm.scheduling.preemption import Preemptor
from minivllm.scheduling.remote_kvs import RemoteKVs
from minivllm.scheduling.request_queue import RequestQueue
from minivllm.scheduling.stop import append_until_stop
from minivllm.scheduling.tracing import trace_ranks, trace_request, trace_schedule
from minivllm.trace import Trace
from minivllm.trace.records import Finished, Sampled


class Scheduler:
    """Continuous batching: one token budget per step, preemption when the blocks run out.

    Args:
        config: how much a step may hold, the policy and the way of preemption.
        kv_manager: where blocks come from.
        trace: listens to every decision, if given.
    """

    def __init__(
        self, config: SchedulerConfig, kv_manager: KVCacheManager, trace: Trace | None = None
    ):
        self.config = config
        self.longest = config.max_model_len - config.num_sampled_tokens_per_step
        self.policy = make_policy(config.policy)
        self.kv_manager = kv_manager
        kv_manager.num_lookahead_tokens = config.num_lookahead_tokens
        kv_manager.max_num_slots = config.max_model_len
        self.preemptor = Preemptor(kv_manager, config.preemption_mode, trace)
        self.trace = trace
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.sequences: dict[str, Sequence] = {}  # theirs, those that are not finished
        self.waiting = RequestQueue(self.policy)
        self.swapped = RequestQueue(self.policy)  # whose blocks are on the host
        self.lora_slots = LoRASlots(config.max_loras, trace)
        self.remote_kvs: RemoteKVs | None = None  # set if there is a KV connector
        self.encoder_inputs = make_encoder_inputs(config, trace)  # None: a text model
        self.running: list[Sequence] = []  # in order of admission; siblings side by side
        self.next_output = SchedulerOutput()  # gets what happens between two steps
        self.token_budget = 0  # left in the step that is planned
        self.spec_decoding_stats: SpecDecodingStats | None = None  # of the last step, with drafts
        self._num_drafting_slots = config.num_drafting_slots  # a draft model's, per sequence
        self._num_arrived = 0
        self._ids_in_use: set[str] = set()  # of all sequences, those to be forked included
        self.num_preemptions = 0  # so far

    def has_unfinished_requests(self) -> bool:
        """True while any request waits or runs, or the blocks of one that has ended are sent."""
        return bool(self.requests) or bool(self.remote_kvs and self.remote_kvs.sending)

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        check_limits(request, self.config, self.policy, kv_manager=self.kv_manager)
        check_items(request, self.encoder_inputs, others=self.requests.values())
        if taken := self.ids_in_use(request):
            raise ValueError(f"request_id {taken[0]!r} is in use; choose another.")

    def add_request(self, request: Request) -> None:
        """Add a request to the waiting queue. Raises ``ValueError`` as ``check_request`` does."""
        self.check_request(request)
        if request.beam_params is not None:
            request.beam_search = BeamSearch(request, self.config.max_model_len)
        request.arrival_index = self._num_arrived
        index = self.waiting.add(request)  # first: a policy of a user's may raise
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self.sequences[request.request_id] = request.seqs[0]
        self._ids_in_use.update(request.seq_ids)
        trace_request(self.trace, request, index)

    def ids_in_use(self, request: Request) -> list[str]:
        """Sequence ids of a new request, of samples to come included, that are taken."""
        holding = self.kv_manager.block_tables  # also of some that have ended
        return [s for s in request.seq_ids if s in self._ids_in_use or s in holding]

    def update_draft_token_ids(self, drafts: Mapping[str, list[int]]) -> None:
        """Set the drafts that the next step verifies, by id of running sequences."""
        set_drafts(self.sequences, drafts)

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> None:
        """Finish all sequences of requests, waiting or running. Unknown ids are ignored."""
        for request_id in request_ids:
            if request_id in self.requests:
                for seq in self.requests[request_id].unfinished_seqs:
                    self.finish(seq, status)

    def stop_sequences(self, sequences: Iterable[tuple[str, int]]) -> None:
        """Finish sequences with a stop string (request id, index), as a part of the last step."""
        with self.trace.step_reopened() if self.trace is not None else nullcontext():
            for request_id, index in sequences:
                request = self.requests.get(request_id)
                seq = None if request is None else self.sequences.get(request.seq_id(index))
                if seq is not None:
                    self.finish(seq, RequestStatus.FINISHED_STOPPED)

    # -- planning a step, from top to bottom -------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Plan one step: which sequences compute how many tokens, into which blocks."""
        if self.trace is not None:
            self.trace.start_step()
        self.token_budget = self.config.max_num_batched_tokens - self._num_drafting_slots
        # the plan begins with what has happened since the last one
        output = self.next_output
        self.next_output = SchedulerOutput()
        may_admit = self.policy.may_admit(self.running)
        if self.policy.prefill_first and may_admit:
            self._admit_waiting(output)
        if not (self.policy.prefill_first and output.num_scheduled_tokens):
            # Phase 1: running sequences go on.
            self._continue_running(output)
            # Phase 2: others join them. A step that had to preempt has no room for them.
            if not output.preempted_req_ids:
                if self.swapped:
                    self._swap_in(output)
                if may_admit and (self.waiting or self.remote_kvs is not None):
                    self._admit_waiting(output)
        self._complete(output)
        return output

    def _continue_running(self, output: SchedulerOutput) -> None:
        """Schedule running sequences, in admission order, until the token budget is used up."""
        copies = output.kv_cache_block_copies
        index = 0
        while index < len(self.running) and self.token_budget > 0:
            seq = self.running[index]
            num_new = self._num_new_tokens(seq, output)
            if num_new > 1 or self.encoder_inputs is not None:
                num_new = self._limit_chunk(seq, num_new)
            if num_new > 0:  # else it is passed over, like a beam that waits for the others
                # Out of blocks: preempt until it fits, or this request is itself the victim.
                while (new_ids := self.kv_manager.allocate_slots(seq, num_new, copies)) is None:
                    self._preempt(self.policy.victim(self.running).request, output)
                    if seq.status != RequestStatus.RUNNING:
                        return
                    index = self.running.index(seq)  # a sequence before it may have gone
                self._add_to_output(output, seq, num_new)
                if new_ids:
                    output.new_block_ids[seq.seq_id] = self.kv_manager.ids_by_group(new_ids)
            index += 1

    def _admit_waiting(self, output: SchedulerOutput) -> None:
        """Admit waiting requests in queue order; stop at the first that does not fit."""
        self.lora_slots.begin(self.running)
        for request in self.waiting.in_order():
            # passed over, others may run: its tokens are still on their way, or no slot is free
            if request.is_in_flight or not self.lora_slots.join(request):
                continue
            no_room = self.token_budget <= 0 or not self._has_room(request)
            if no_room or not self._admit_or_fetch(request, output):
                return

    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        """Admit all sequences of a request, or give all blocks back and return False.

        All that is known of each must fit, though only a chunk is computed now: two half-admitted
        prompts could otherwise starve each other.
        """
        manager = self.kv_manager
        admitted: list[Sequence] = []
        promised = 0
        for seq in request.unfinished_seqs:  # several only after a preemption
            hit = manager.get_computed_blocks(seq)
            seq.num_computed_tokens = hit.num_tokens
            num_wanted = self._num_new_tokens(seq, output)
            num_new = self._limit_chunk(seq, num_wanted)
            fits = manager.can_fit_full_sequence(seq, hit, num_new, promised)
            if not fits or (num_new == 0 < num_wanted and not admitted):
                self._withdraw(request, output)
                return False
            manager.allocate_new_computed_blocks(seq, hit)
            admitted.append(seq)
            self._start(seq, num_new, output)
            promised += manager.num_missing_blocks(seq)
        if manager.prefix_cache is not None:
            manager.prefix_cache.record_queries(admitted)
        self.running += admitted
        self.waiting.remove(request)
        return True

    def _add_to_output(self, output: SchedulerOutput, seq: Sequence, num_new: int) -> None:
        """Add a sequence's next tokens to the step, and take them off the token budget."""
        output.num_scheduled_tokens[seq.seq_id] = num_new
        output.num_computed_tokens[seq.seq_id] = seq.num_computed_tokens
        if seq.spec_token_ids:
            add_drafts(seq, num_new, output)
        if self.encoder_inputs is not None:
            self.encoder_inputs.schedule(seq)
        output.has_structured_output_requests |= seq.grammar is not None
        self.token_budget -= num_new + self._num_drafting_slots

    def _admit_or_fetch(self, request: Request, output: SchedulerOutput) -> bool:
        """Admit a request, or let its K and V be fetched. False: there is too little room."""
        if self.swapped and request.request_id not in self.waiting.holding:
            return False  # the swapped come first; they may need blocks that another one holds
        remote = self.remote_kvs
        fetched = None if remote is None else remote.consider(request, output, self)
        return self._admit(request, output) if fetched is None else fetched

    def _complete(self, output: SchedulerOutput) -> None:
        """Complete a plan with what holds for all of its sequences, and count it as computed."""
        if self.config.max_loras:
            output.lora_loads = self.lora_slots.activate(self.running)
        if self.remote_kvs is not None:
            output.kv_connector_metadata = self.remote_kvs.connector.build_connector_meta(output)
        if self.encoder_inputs is not None:
            self.encoder_inputs.complete(output)
        if self.trace is not None:
            trace_schedule(self.trace, self.running, output)
        for seq_id, num_new in output.num_scheduled_tokens.items():
            seq = self.sequences[seq_id]
            # From now on they count as computed: a step planned before this one's tokens are known
            # goes on behind them, and passes over a sequence whose next token is on its way.
            seq.num_computed_tokens += num_new
            if seq.request.n > len(seq.request.seqs):
                plan_forks(seq, output)

    def _start(self, seq: Sequence, num_new: int, output: SchedulerOutput) -> None:
        """Start an admitted sequence; after its siblings there may be no budget left for it."""
        request = seq.request
        if seq.status == RequestStatus.WAITING:
            output.scheduled_new_reqs.append(NewRequestData.from_sequence(seq))
        else:
            output.resumed_req_ids.append(seq.seq_id)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = seq.num_computed_tokens
            request.metrics.first_scheduled_time = time.monotonic()
        seq.status = RequestStatus.RUNNING
        if num_new > 0:
            self.kv_manager.allocate_slots(seq, num_new, output.kv_cache_block_copies)
            self._add_to_output(output, seq, num_new)
        block_ids = self.kv_manager.get_block_ids(seq.seq_id)
        output.new_block_ids[seq.seq_id] = self.kv_manager.ids_by_group(block_ids)

    def _swap_in(self, output: SchedulerOutput) -> None:
        """Swap requests back in before admitting new ones; they resume where they were."""
        self.lora_slots.begin(self.running)
        while self.swapped and self.token_budget > 0 and self._has_room(self.swapped[0]):
            has_slot = self.lora_slots.join(self.swapped[0])
            if not has_slot or not (seqs := self.preemptor.swap_in(self.swapped, output)):
                return
            for seq in seqs:
                self.resume(seq, output)

    def resume(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Let a sequence run again that has all blocks of what is computed of it."""
        self.running.append(seq)
        num_new = self._limit_chunk(seq, self._num_new_tokens(seq, output))
        self._start(seq, num_new, output)

    def _has_room(self, request: Request) -> bool:
        """True if a request's sequences, forks to come included, may run beside the others."""
        running = sum(1 + seq.request.num_forks_to_come for seq in self.running)
        siblings = len(request.unfinished_seqs) + request.num_forks_to_come
        return running + siblings <= self.config.max_num_seqs

    def _num_new_tokens(self, seq: Sequence, output: SchedulerOutput) -> int:
        """Tokens and drafts not yet computed, less one of a beam that waits for the others."""
        num_known, longest = len(seq.token_ids) + len(seq.spec_token_ids), self.longest
        num_new = (num_known if num_known < longest else longest) - seq.num_computed_tokens
        beam_search = seq.request.beam_search
        if beam_search is not None:
            slots = self._num_drafting_slots
            num_more = (self.token_budget + slots) // (1 + slots)  # that decode in this step
            num_new -= beam_search.num_held_back(seq, output.num_scheduled_tokens, num_more)
        return num_new

    def _limit_chunk(self, seq: Sequence, num_new: int) -> int:
        """Limit a chunk to the budget, and to the long prefill threshold beside other requests.

        It ends before a picture that cannot be encoded in this step. It is 0 if nothing can be
        computed, or not all that the sequence lacks, and that may not be computed in chunks.
        """
        num_missing = seq.num_tokens - seq.num_computed_tokens
        if num_missing > self.token_budget and not self.config.enable_chunked_prefill:
            return 0
        threshold = self.config.long_prefill_token_threshold if len(self.requests) > 1 else 0
        num_new = min(num_new, self.token_budget, threshold or num_new)
        return num_new if self.encoder_inputs is None else self.encoder_inputs.limit(seq, num_new)

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        """Preempt a request: swap its blocks to the host or free them, and requeue it."""
        victims = [seq for seq in self.running if seq.request is request]
        swapped = self.preemptor.swap_out(victims, output)
        index = (self.swapped if swapped else self.waiting).add_preempted(request)
        for seq in victims:
            self.running.remove(seq)
            self._unschedule(seq, output)
            seq.status = RequestStatus.PREEMPTED
            self._release(seq, swapped)
            output.preempted_req_ids.append(seq.seq_id)
        self.num_preemptions += 1
        request.num_preemptions += 1
        self.preemptor.finish(victims, swapped, index, self.num_preemptions)

    def _withdraw(self, request: Request, output: SchedulerOutput) -> None:
        """Undo the admission of a request of which a sequence did not fit."""
        for seq in reversed(request.unfinished_seqs):
            if seq.status == RequestStatus.RUNNING:  # one that did
                resumed = seq.seq_id in output.resumed_req_ids
                self._unschedule(seq, output)
                seq.status = RequestStatus.PREEMPTED if resumed else RequestStatus.WAITING
            self._release(seq)
            seq.num_computed_tokens = 0

    def _unschedule(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Take a sequence out of the step, if it is in it; the budget gets its tokens back."""
        num_new = output.num_scheduled_tokens.get(seq.seq_id, 0)
        if num_new > 0:
            self.token_budget += num_new + self._num_drafting_slots
        output.remove(seq.seq_id)
        seq.spec_token_ids = []

    def _release(self, seq: Sequence, swapped: bool = False, stays: bool = False) -> None:
        """Release all that a sequence holds, but for host blocks if it was swapped out."""
        if swapped:
            self.kv_manager.free(seq, keep_host_blocks=True)
        elif not stays:
            self.kv_manager.free(seq)
        if self.encoder_inputs is not None:
            self.encoder_inputs.free(seq)

    # -- after a step ------------------------------------------------------------------------------

    def update_from_output(
        self, scheduler_output: SchedulerOutput, output: ModelRunnerOutput
    ) -> list[Sequence]:
        """Append the sampled tokens, finish, free. Returns the sequences that have any output."""
        if self.trace is not None:
            trace_ranks(self.trace, output)
        if self.encoder_inputs is not None:
            self.encoder_inputs.free_processed(scheduler_output, self.sequences)
        # 1. Which sequences have any output? A chunk that did not end its prompt has none, and one
        # that was aborted while the step was on its way is gone.
        sampled = output.sampled_token_ids or output.pooler_output
        advancing = [
            self.sequences[seq_id]
            for seq_id in scheduler_output.num_scheduled_tokens
            if seq_id in sampled and seq_id in self.sequences
        ]
        # 2. Drafts that were rejected are no longer computed.
        self.spec_decoding_stats = None
        if drafted := scheduler_output.scheduled_spec_decode_tokens:
            most = self.config.num_speculative_tokens
            self.spec_decoding_stats = give_back_rejected(
                advancing, drafted, output.sampled_token_ids, num_drafts=most, trace=self.trace
            )
        # 3. Samples fork where their prompt ends.
        updated: list[Sequence] = []
        searching: dict[Request, Beams] = {}
        for seq in advancing:
            if seq.request.beam_search is not None:
                searching[seq.request] = seq.request.beam_search
                continue
            updated.append(seq)
            if seq.request.n > len(seq.request.seqs):
                updated += self.fork(seq, range(1, seq.request.n))
        # 4. Each sample gets its tokens. A pooling request gets none, and ends.
        for seq in updated:
            if seq.request.pooling_params is None:
                self._append_sampled(seq, output.sampled_token_ids[seq.seq_id])
            else:
                self.finish(seq, RequestStatus.FINISHED_STOPPED)
        # 5. The beams of a request advance together.
        for request, beam_search in searching.items():
            beam_search.advance(output.logprobs, update=self)
            updated += request.seqs
        # 6. K and V have come from elsewhere, or have been sent.
        if self.remote_kvs is not None:
            updated += self.remote_kvs.update(output.kv_connector_output, self)
        if self.trace is not None:
            self.trace.end_step()
        return updated

    _append_sampled = append_until_stop

    # -- what changes a sequence; a beam search asks for it, too -----------------------------------

    def append(self, seq: Sequence, token_id: int) -> None:
        """Append a token."""
        seq.token_ids.append(token_id)
        if self.trace is not None:
            self.trace.record(Sampled, seq.seq_id, token_id)

    def fork(self, seq: Sequence, indices: Iterable[int]) -> list[Sequence]:
        """Fork a sequence. Returns siblings that share its tokens and blocks, beside it."""
        return fork(self, seq, indices)

    def finish(
        self, seq: Sequence, status: RequestStatus, stop_reason: int | str | None = None
    ) -> None:
        """Finish a sequence and free its blocks; with the last one its request is finished."""
        request = seq.request
        if seq.status == RequestStatus.RUNNING:
            self.running.remove(seq)
        seq.status = status
        seq.stop_reason = stop_reason
        stays = self.remote_kvs is not None and self.remote_kvs.keeps(seq)
        self._release(seq, stays=stays)
        del self.sequences[seq.seq_id]
        self.next_output.finish(seq.seq_id)
        if self.trace is not None:
            self.trace.record(Finished, seq.seq_id, status.finish_reason)
        if not request.unfinished_seqs:
            del self.requests[request.request_id]
            self._ids_in_use.difference_update(request.seq_ids)
            self.waiting.discard(request)
            self.swapped.discard(request)

    def reset(self, checkpoint: Checkpoint | None = None) -> None:
        """Let all requests wait, to be computed again, after a step that has failed."""
        reset(self, checkpoint)
        self._ids_in_use = {i for request in self.requests.values() for i in request.seq_ids}

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless queues, requests and blocks are consistent."""
        check_integrity(self)
