"""Books: the scheduler's state. Queues, sequences, and every change that can be undone.

The scheduler plans; this is what it keeps between steps.
(vLLM: the queues of ``Scheduler`` in vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.records import Finished, Forked, RequestAdded, Scheduled
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.beams import BeamSearch
from minivllm.scheduling.decoding import SAMPLING, Decoding
from minivllm.scheduling.limits import check_limits
from minivllm.scheduling.output import BeamMove, SchedulerOutput
from minivllm.scheduling.policies import make_policy
from minivllm.trace import Trace


class Books:
    """The queues, and all sequences that are not finished. Changes go to the undo log.

    Args:
        config: the limits, and the policy that says where a request stands in its queue.
        kv_manager: allocates and frees blocks.
        trace: listens to every change, if given.
    """

    def __init__(self, config: SchedulerConfig, kv_manager: KVCacheManager, trace: Trace | None):
        self.config = config
        self.max_model_len = config.max_model_len
        self.policy = make_policy(config.policy)
        self.kv_manager = kv_manager
        self.undo_log = kv_manager.undo_log  # a step that fails is taken back with it
        self.trace = trace
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.sequences: dict[str, Sequence] = {}  # theirs, those that are not finished
        self.waiting: list[Request] = []  # by the policy's key, the next one first
        self.swapped: list[Request] = []  # on the host; by the policy's key, too
        self.running: list[Sequence] = []  # in order of admission; siblings side by side
        self.finished_req_ids: list[str] = []  # what the runner is told next to forget
        self.beam_moves: list[BeamMove] = []  # what the runner is told next of beams
        self._num_arrived = 0
        self._ids_in_use: set[str] = set()  # of all sequences, those to be forked included

    def has_unfinished_requests(self) -> bool:
        """True while any request waits or runs."""
        return bool(self.requests)

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        check_limits(request, self.config, self.policy, self.kv_manager)
        for seq_id in self.ids_in_use(request):
            raise ValueError(f"request_id {seq_id!r} is in use; choose another.")

    def add_request(self, request: Request) -> None:
        """Add a request to the waiting queue, where the policy puts it.

        Raises:
            ValueError: if it could never run; see ``check_request``.
        """
        self.check_request(request)
        request.decoding = self._decoding(request)
        request.arrival_index = self._num_arrived
        index = self._enqueue(request, self.waiting)  # first: a policy of a user's may raise
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self.sequences[request.request_id] = request.seqs[0]
        self._ids_in_use.update(request.seq_ids)
        if self.trace is not None:
            prompt = tuple(request.prompt_token_ids)
            self.trace.record(RequestAdded, request.request_id, prompt, index, self.trace.now())

    def _decoding(self, request: Request) -> Decoding:
        if request.beam_params is None:
            return SAMPLING
        longest = len(request.prompt_token_ids) + request.beam_params.max_tokens
        return BeamSearch(
            request.beam_params, request.eos_token_ids, min(longest, self.max_model_len)
        )

    def ids_in_use(self, request: Request) -> list[str]:
        """Sequence ids of a new request, of samples to come included, that are taken."""
        return [seq_id for seq_id in request.seq_ids if seq_id in self._ids_in_use]

    def _enqueue(self, request: Request, queue: list[Request]) -> int:
        """Insert a request into a queue by the policy's key; returns its index."""
        index = bisect_right(queue, self.policy.key(request), key=self.policy.key)
        self.undo_log.insert(queue, index, request)
        return index

    def fork(self, seq: Sequence, indices: Iterable[int]) -> list[Sequence]:
        """Fork a sequence: siblings that share its tokens and blocks, running beside it."""
        request, undo, children = seq.request, self.undo_log, []
        for index in indices:
            child = seq.fork(index)
            self.kv_manager.fork(seq, child)
            undo.put(self.sequences, child.seq_id, child)
            children.append(child)
            if self.trace is not None:
                self.trace.record(Forked, seq.seq_id, child.seq_id)
        place = self.running.index(request.seqs[-1]) + 1
        for child in reversed(children):
            undo.insert(self.running, place, child)
        for child in children:
            undo.insert(request.seqs, len(request.seqs), child)
        return children

    def update_draft_token_ids(self, drafts: Mapping[str, list[int]]) -> None:
        """Set the draft tokens of sequences, to be verified by the next step.

        Args:
            drafts: by sequence id. A sequence that has finished or was preempted gets none.
        """
        for seq_id, token_ids in drafts.items():
            seq = self.sequences.get(seq_id)
            if seq is not None and seq.status == RequestStatus.RUNNING:
                seq.spec_token_ids = token_ids

    def _may_run(self, request: Request) -> bool:
        """True if a request's sequences, forks to come included, fit under ``max_num_seqs``."""
        to_come = sum(seq.request.num_forks_to_come for seq in self.running)
        siblings = len(request.unfinished_seqs) + request.num_forks_to_come
        return len(self.running) + to_come + siblings <= self.config.max_num_seqs

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> None:
        """Finish all sequences of requests, waiting or running. Unknown ids are ignored."""
        for request_id in request_ids:
            if request_id in self.requests:
                for seq in self.requests[request_id].unfinished_seqs:
                    self.finish(seq, status)

    def stop_sequences(self, sequences: Iterable[tuple[str, int]]) -> None:
        """Finish sequences whose text holds a stop string, as a part of the last step.

        Args:
            sequences: request id and index of each. Those that are over are ignored.
        """
        with self.trace.step_reopened() if self.trace is not None else nullcontext():
            for request_id, index in sequences:
                request = self.requests.get(request_id)
                seqs = [] if request is None else request.unfinished_seqs
                for seq in [seq for seq in seqs if seq.index == index]:
                    self.finish(seq, RequestStatus.FINISHED_STOPPED)

    def finish(
        self, seq: Sequence, status: RequestStatus, stop_reason: int | str | None = None
    ) -> None:
        """Finish a sequence and free its blocks; with the last one its request is finished."""
        request, undo = seq.request, self.undo_log
        if seq.status == RequestStatus.RUNNING:
            undo.pop(self.running, self.running.index(seq))
        undo.set(seq, "status", status)
        undo.set(seq, "stop_reason", stop_reason)
        self.kv_manager.free(seq)
        undo.take(self.sequences, seq.seq_id)
        undo.insert(self.finished_req_ids, len(self.finished_req_ids), seq.seq_id)
        if request.decoding.in_lockstep:
            moves = [move for move in self.beam_moves if move.seq_id != seq.seq_id]
            undo.set(self, "beam_moves", moves)
        if self.trace is not None:
            self.trace.record(Finished, seq.seq_id, status.finish_reason)
        if not request.unfinished_seqs:
            undo.take(self.requests, request.request_id)
            undo.note(self._ids_in_use.update, request.seq_ids)
            self._ids_in_use.difference_update(request.seq_ids)
            for queue in (self.waiting, self.swapped):
                if request in queue:
                    undo.pop(queue, queue.index(request))

    def _take_tokens_back(
        self, scheduler_output: SchedulerOutput, sampled: dict[str, list[int]]
    ) -> None:
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            seq = self.sequences.get(seq_id)
            if seq is not None:
                seq.num_computed_tokens = scheduler_output.num_computed_tokens[seq_id]
                if seq_id in sampled:
                    drafts = scheduler_output.scheduled_spec_decode_tokens.get(seq_id, ())
                    del seq.token_ids[seq.num_computed_tokens + num_new - len(drafts) :]

    def _complete(self, output: SchedulerOutput) -> None:
        """Complete the step's output: whole block tables, finished ids, beam moves."""
        for seq_id in (*(new.seq_id for new in output.scheduled_new_reqs), *output.resumed_req_ids):
            output.new_block_ids[seq_id] = self.kv_manager.get_block_ids(seq_id)
        output.finished_req_ids, output.beam_moves = self.finished_req_ids, self.beam_moves
        self.undo_log.set(self, "finished_req_ids", [])
        self.undo_log.set(self, "beam_moves", [])
        if self.trace is not None:
            self._trace_schedule(self.trace, output)

    def _trace_schedule(self, trace: Trace, output: SchedulerOutput) -> None:
        kinds = {data.seq_id: "new" for data in output.scheduled_new_reqs}
        kinds |= dict.fromkeys(output.resumed_req_ids, "resumed")
        for seq in self.running:
            num_new = output.num_scheduled_tokens.get(seq.seq_id, 0)
            kind = kinds.get(seq.seq_id, "running")
            if num_new > 0 or kind == "resumed":
                computed = seq.num_computed_tokens
                samples = computed + num_new >= seq.num_tokens
                trace.record(Scheduled, seq.seq_id, kind, computed, num_new, samples)
        trace.plan_step()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless queues, requests and blocks are consistent."""
        manager = self.kv_manager
        manager.check_integrity()
        queues = (*self.waiting, *self.swapped)
        waiting = [seq for request in queues for seq in request.unfinished_seqs]
        queued = [seq.seq_id for seq in (*self.running, *waiting)]
        alive = [seq for request in self.requests.values() for seq in request.unfinished_seqs]
        known = list(self.sequences)
        assert sorted(queued) == sorted(known), f"{queued} != {known}"
        assert {seq.seq_id: seq for seq in alive} == self.sequences
        running = {seq.seq_id for seq in self.running}
        assert set(manager.block_tables) == running, "only running sequences hold blocks"
        to_come = sum(seq.request.num_forks_to_come for seq in self.running)
        assert len(running) + to_come <= self.config.max_num_seqs
        swapped = {seq.seq_id for request in self.swapped for seq in request.unfinished_seqs}
        assert set(manager.swap_space.tables) == swapped, "only the swapped are on the host"
        assert not any(seq.spec_token_ids for seq in waiting), "drafts are for the running"
        for seq in self.running:
            blocks = manager.block_tables[seq.seq_id].blocks
            room = len(blocks) * manager.block_size
            computed, num_tokens = seq.num_computed_tokens, seq.num_tokens
            assert computed <= num_tokens, (
                f"{seq.seq_id} has computed {computed} of {num_tokens} tokens"
            )
            assert seq.num_computed_tokens <= room, f"{seq} holds {len(blocks)} blocks"
            if manager.prefix_cache is not None:
                beyond = blocks[seq.num_tokens // manager.block_size :]
                assert not any(b.block_hash for b in beyond), f"a draft of {seq} can be found"
