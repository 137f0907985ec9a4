"""BatchQueue: plans in flight, whose tokens are not known yet.

A pipeline of stages works on several plans at once. They must be of different requests: one whose
token is on its way has nothing to compute, and is passed over. So nothing splits a batch for the
pipeline; it is full only if there are requests for several plans.
(vLLM: ``step_with_batch_queue`` in vllm/v1/engine/core.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler

Execute = Callable[[SchedulerOutput], "Future[ModelRunnerOutput]"]


class BatchQueue:
    """Queue of at most ``size`` plans in flight, the oldest first. It is filled before it is read.

    Args:
        scheduler: makes the plans.
        size: number of plans; that of stages keeps all of them busy.
    """

    def __init__(self, scheduler: Scheduler, size: int):
        self.scheduler = scheduler
        self.size = size
        self._plans: deque[tuple[SchedulerOutput, Future[ModelRunnerOutput]]] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def has_work(self) -> bool:
        """True while a call of ``advance`` has something to do."""
        return bool(self._plans) or self._has_something_to_plan

    @property
    def _has_something_to_plan(self) -> bool:
        scheduler = self.scheduler
        return bool(scheduler.requests) or bool(scheduler.next_output.finished_req_ids)

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
            self._count(plan, 1)
            self._plans.append((plan, execute(plan)))
            more = bool(plan.num_scheduled_tokens) or bool(self.scheduler.requests)
            if len(self._plans) < self.size and more:
                if trace is not None:
                    trace.end_step_without_output()
                return None
        elif not self._plans:
            return None
        elif trace is not None:
            trace.start_step_without_plan()
        plan, output = self._plans.popleft()
        result = output.result()
        self._count(plan, -1)
        return plan, result

    def _count(self, plan: SchedulerOutput, sign: int) -> None:
        """Count the tokens of a plan as in flight, or no longer."""
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            if (seq := self.scheduler.sequences.get(seq_id)) is not None:
                seq.num_in_flight_tokens += sign * num_new

    def clear(self) -> None:
        """Give all plans up: after a failed step their requests are computed again."""
        self._plans.clear()
