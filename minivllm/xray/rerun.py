"""Rerun: our scheduler, step by step where vLLM's was, with the tokens that came there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future

from minivllm.request import Request, RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue, PlanInFlight
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
        self._queue = RecordedQueue(self.scheduler)
        # by the step that made them: plans in flight, and what will come of them
        self._plans: dict[int, tuple[SchedulerOutput, Future[ModelRunnerOutput]]] = {}
        self._empty: set[int] = set()  # steps that made none

    def step(self, step: RecordedStep) -> None:
        """Do a step, after what came before it."""
        trace = self.scheduler.trace
        records = step.records
        made = self._ended[step.number]
        assert trace is not None
        self._hear(step.before)
        if makes_plan(step) or made == step.number:
            self._make_plan(step)
        else:
            self._empty.add(step.number)
            trace.start_step_without_plan()
        planned = next(i for i, r in enumerate(records) if isinstance(r, StepPlanned))
        self._hear(records[planned:])  # a server aborts also while a step is computed
        if made is None or made in self._empty:
            trace.end_step_without_output()
            return
        oldest = next(iter(self._plans), None)
        if made != oldest:
            raise ValueError(
                f"the X-ray contradicts itself in step {step.number}: the plan of step {made} "
                f"ends, and the oldest in flight is that of {oldest}."
            )
        self._end_plan(made, records)

    def _make_plan(self, step: RecordedStep) -> None:
        """Plan a step as if some requests were not there: vLLM steps over them."""
        skipped = {r.request_id for r in step.records if isinstance(r, RequestSkipped)}
        drafts = {
            r.seq_id: list(r.draft_token_ids) for r in step.records if isinstance(r, Verified)
        }
        self.scheduler.update_draft_token_ids(drafts)
        waiting = self.scheduler.waiting
        passed = [request for request in waiting if request.request_id in skipped]
        for request in passed:
            waiting.remove(request)
        future: Future[ModelRunnerOutput] = Future()
        self._plans[step.number] = self._queue.make(future), future
        for request in reversed(passed):
            waiting.add_preempted(request)

    def _hear(self, records: Iterable[Record]) -> None:
        """Do what users did: ask, abort, and reset the prefix cache."""
        scheduler = self.scheduler
        forgets = False
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

    def _end_plan(self, made: int, records: list[Record]) -> None:
        """End the plan of an earlier step, or of this one, with the tokens that came."""
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
                # maybe by a stop token, which was not known before
                params = self._requests[record.seq_id].sampling_params
                params.max_tokens = self._ends[record.seq_id]
        future.set_result(ModelRunnerOutput(dict(tokens)))
        plan, output = self._queue.pop()
        self.scheduler.update_from_output(plan, output)


class RecordedQueue(BatchQueue):
    """A queue whose plans are made and ended when vLLM's were."""

    def __init__(self, scheduler: Scheduler):
        super().__init__(scheduler, size=0)

    def make(self, output: Future[ModelRunnerOutput]) -> SchedulerOutput:
        """Make a plan, whose output will come."""
        plan = self.scheduler.schedule()
        sequences = [self.scheduler.sequences[name] for name in plan.num_scheduled_tokens]
        self._count(plan, sequences, 1)
        self._plans.append(PlanInFlight(plan, output, sequences))
        return plan

    def pop(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        """Take the oldest plan out, and its output, which has come."""
        return self._pop()

    def drop(self, request: Request) -> None:
        """Throw away what is on its way for a request, which a reset of the cache has preempted."""
        for seq in request.unfinished_seqs:
            for plan in self._plans:
                if seq in plan.sequences:
                    plan.sequences.remove(seq)
            seq.num_in_flight_tokens = 0
