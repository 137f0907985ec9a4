"""Rerun: our scheduler, step by step where vLLM's was, with the tokens that came there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future

from minivllm.request import Request, RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace.records import (
    BlockForgotten,
    Finished,
    Preempted,
    Record,
    RequestAdded,
    RequestSkipped,
    Sampled,
    StepPlanned,
    Verified,
)
from minivllm.xray.format import XRay
from minivllm.xray.in_flight import ended_plans, makes_plan
from minivllm.xray.recorded_steps import RecordedStep
from minivllm.xray.replay_settings import ends_of, make_scheduler, requests_of


class Rerun:
    """Our scheduler on a recorded run.

    Requests arrive before the same steps, plans are made and end in the same ones, and tokens and
    drafts are those that were recorded.

    Args:
        xray: of the run, which begins at its beginning.

    Raises:
        ValueError: for an unknown policy, or tokens of no plan in flight.
    """

    def __init__(self, xray: XRay):
        self.scheduler: Scheduler = make_scheduler(xray)
        self._requests: dict[str, Request] = requests_of(xray, joins=False)
        self._ends = ends_of(xray)
        self._ended = ended_plans(xray.trace)
        self._queue = RecordedQueue(self.scheduler, size=1)
        # by the step that made them: plans in flight, and what will come of them
        self._plans: dict[int, tuple[SchedulerOutput, Future[ModelRunnerOutput]]] = {}
        self._step = RecordedStep(-1, [], [])
        self._skipped: list[Request] = []

    def step(self, step: RecordedStep) -> None:
        """Do a step, after what came before it."""
        self._step, queue = step, self._queue
        self._hear(step.before)
        ends = self._ended[step.number] is not None
        if makes_plan(step):
            drafts = {
                r.seq_id: list(r.draft_token_ids) for r in step.records if isinstance(r, Verified)
            }
            self.scheduler.update_draft_token_ids(drafts)
            self._step_over()
            queue.size = len(queue) + (1 if ends else 2)
            oldest = queue.advance(self._launch)
        else:
            self._take_what_came()
            oldest = queue.end_oldest()
        if oldest is not None:
            self.scheduler.update_from_output(*oldest)

    def _hear(self, records: Iterable[Record]) -> None:
        """Do what users did: ask, abort, and reset the prefix cache."""
        scheduler, forgets = self.scheduler, False
        for record in records:
            if isinstance(record, RequestAdded):
                scheduler.add_request(self._requests[record.request_id])
            elif isinstance(record, Finished) and record.seq_id not in self._ends:
                scheduler.finish_requests([record.seq_id], RequestStatus.FINISHED_ABORTED)
            elif isinstance(record, Preempted) and record.seq_id in scheduler.requests:
                # by a reset of the prefix cache, which the next plan knows nothing of
                request = scheduler.requests[record.seq_id]
                scheduler._preempt(request, SchedulerOutput())
                self._queue.drop(request)
            elif isinstance(record, BlockForgotten) and not forgets:
                scheduler.kv_manager.reset_prefix_cache()  # one record for each block
                forgets = True

    def _step_over(self) -> None:
        """Take requests out of the queue while a plan is made: vLLM steps over them."""
        skipped = {r.request_id for r in self._step.records if isinstance(r, RequestSkipped)}
        waiting = self.scheduler.waiting
        self._skipped = [request for request in waiting if request.request_id in skipped]
        for request in self._skipped:
            waiting.remove(request)

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Send a plan on its way, whose tokens come when vLLM's came."""
        for request in reversed(self._skipped):
            self.scheduler.waiting.add_preempted(request)
        future: Future[ModelRunnerOutput] = Future()
        self._plans[self._step.number] = plan, future
        self._take_what_came()
        return future

    def _take_what_came(self) -> None:
        """Do what users did while plans were on their way, and take the tokens that came."""
        records = self._step.records
        planned = next(i for i, r in enumerate(records) if isinstance(r, StepPlanned))
        self._hear(records[planned:])
        if (made := self._ended[self._step.number]) is None:
            return
        plan, future = self._plans.pop(made)
        tokens: dict[str, list[int]] = defaultdict(list)
        for record in records:
            if isinstance(record, Sampled) and record.seq_id in plan.num_scheduled_tokens:
                tokens[record.seq_id].append(record.token_id)
        for record in records:
            if isinstance(record, Verified):  # those beyond an end were verified, but not appended
                found = tokens[record.seq_id]
                found += [0] * (record.num_accepted + 1 - len(found))
            elif isinstance(record, Finished) and record.seq_id in self._ends:
                # maybe by a stop token, which nobody could know before
                params = self._requests[record.seq_id].sampling_params
                params.max_tokens = self._ends[record.seq_id]
        future.set_result(ModelRunnerOutput(dict(tokens)))


class RecordedQueue(BatchQueue):
    """A queue of plans some of whose tokens may be thrown away."""

    def drop(self, request: Request) -> None:
        """Throw away what is on its way for a request, which a reset of the cache has preempted."""
        for seq in request.unfinished_seqs:
            for plan in self._plans:
                if seq in plan.sequences:
                    plan.sequences.remove(seq)
            seq.num_in_flight_tokens = 0
