"""BatchQueue: plans in flight, whose tokens are not known yet.

A pipeline of stages works on several plans at once. They must be of different requests: one whose
token is on its way has nothing to compute, and is passed over. So nothing splits a batch for the
pipeline; it is full only if there are requests for several plans.
(vLLM: ``step_with_batch_queue`` in vllm/v1/engine/core.py) (notebook 20b)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from minivllm.request import Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace.records import TokensWasted

Execute = Callable[[SchedulerOutput], "Future[ModelRunnerOutput]"]


@dataclass(frozen=True)
class PlanInFlight:
    """A plan whose tokens are not known yet.

    Attributes:
        plan: what is computed.
        output: comes when it has been computed.
        sequences: those in it. They may have ended when its output comes, and a new request may
            have the id of one by then.
    """

    plan: SchedulerOutput
    output: Future[ModelRunnerOutput]
    sequences: list[Sequence]


class BatchQueue:
    """Queue of at most ``size`` plans in flight, the oldest first. It is filled before it is read.

    Args:
        scheduler: makes the plans.
        size: number of plans; that of stages keeps all of them busy.
    """

    def __init__(self, scheduler: Scheduler, size: int):
        self.scheduler = scheduler
        self.size = size
        self.num_wasted_tokens = 0  # so far: computed for sequences that had ended meanwhile
        self._plans: deque[PlanInFlight] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def has_work(self) -> bool:
        """True while a call of ``advance`` has something to do."""
        return bool(self._plans) or self._has_something_to_plan

    @property
    def _has_something_to_plan(self) -> bool:
        scheduler = self.scheduler
        more = scheduler.has_unfinished_requests()
        return more or bool(scheduler.next_output.finished_req_ids)

    def advance(self, execute: Execute) -> tuple[SchedulerOutput, ModelRunnerOutput] | None:
        """Make a plan if there are requests; then wait for the oldest one if the queue is full.

        Args:
            execute: gives a plan to the model runner, which computes plans in the order of these
                calls; returns a Future of its output.

        Returns:
            A plan and its output, for ``Scheduler.update_from_output``; None if there is room for
            another plan first, or nothing to do.
        """
        trace = self.scheduler.trace
        if self._has_something_to_plan:
            plan = self.scheduler.schedule()
            sequences = [self.scheduler.sequences[name] for name in plan.num_scheduled_tokens]
            self._count(plan, sequences, 1)
            self._plans.append(PlanInFlight(plan, execute(plan), sequences))
            more = bool(plan.num_scheduled_tokens) or self.scheduler.has_unfinished_requests()
            if len(self._plans) < self.size and more:
                if trace is not None:
                    trace.end_step_without_output()
                return None
        elif not self._plans:
            return None
        else:
            return self.end_oldest()
        return self._pop()

    def end_oldest(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        """Wait for the oldest plan, without making another one. Returns it and its output."""
        if self.scheduler.trace is not None:
            self.scheduler.trace.start_step_without_plan()
        return self._pop()

    def _pop(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        oldest = self._plans.popleft()
        output = oldest.output.result()
        self._count(oldest.plan, oldest.sequences, -1)
        self._discard(oldest, output)
        return oldest.plan, output

    def _count(self, plan: SchedulerOutput, sequences: list[Sequence], sign: int) -> None:
        """Count the tokens of a plan as in flight, or no longer."""
        for seq in sequences:
            seq.num_in_flight_tokens += sign * plan.num_scheduled_tokens[seq.seq_id]

    def _discard(self, oldest: PlanInFlight, output: ModelRunnerOutput) -> None:
        """Take the tokens of sequences that have ended meanwhile out of an output."""
        trace = self.scheduler.trace
        for seq in oldest.sequences:
            if not seq.status.is_finished:
                continue
            for seq_id in (seq.seq_id, *oldest.plan.forks.get(seq.seq_id, ())):
                wasted = output.sampled_token_ids.pop(seq_id, [])
                self.num_wasted_tokens += len(wasted)
                if trace is not None and wasted:
                    trace.record(TokensWasted, seq_id, trace.oldest_plan, len(wasted))

    def clear(self) -> None:
        """Give all plans up: after a failed step their requests are computed again."""
        self._plans.clear()
