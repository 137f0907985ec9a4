"""PipelineReplica: one engine in simulated time, with several plans in flight.

One in each stage of a pipeline, and one more with asynchronous scheduling: it is made meanwhile.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.cluster import Cluster
from minivllm.lab.sim.cost import CostModel
from minivllm.lab.sim.replica import Replica, Size
from minivllm.request import Sequence
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.livelock import check_progress
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace.records import StepPlanned


class PipelineReplica(Replica):
    """One engine of several stages, each of which may compute another plan.

    A plan goes to a stage when the stage before has sent it on and the plan before has left. A
    stage that waits is a bubble. The CPU is a lane of its own: it makes a plan, and ends the oldest
    one when that has left the last stage and the queue is full.

    Args:
        scheduler, cost, clock, api_waits: as of ``Replica``.
        size: of the queue: how many plans may be in flight.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel | Cluster,
        clock: Clock,
        api_waits: bool,
        size: int,
    ):
        super().__init__(scheduler, cost, clock, api_waits=api_waits)
        self.has_lanes = scheduler.trace is not None
        self.queue = BatchQueue(scheduler, size)
        self.free_from = [0.0] * len(self.stages)  # when each stage has done the plan before
        self.in_flight: deque[tuple[int, list[tuple[float, float]]]] = deque()
        self._size = Size(0, 0, 0, 0, 0)

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.queue)

    @property
    def is_busy(self) -> bool:
        return super().is_busy or any(passed for _, passed in self.in_flight)

    @property
    def num_wasted_tokens(self) -> int:
        return self.queue.num_wasted_tokens

    def _step(self) -> list[Sequence]:
        """Make a plan if there is room for one; else wait for the oldest one and end it."""
        self.num_steps += 1
        oldest = self.queue.advance(self._launch)
        if oldest is None:
            return []
        plan, output = oldest
        before = self.now
        (num_tokens, passed) = self.in_flight.popleft()
        if passed:
            end = max(before, passed[-1][1])
            self.clock.now = end + self.cpu.update(len(plan.num_scheduled_tokens))
        elif self._is_kept_out:
            self.clock.now += self._empty_step_seconds()
        self.memory.add(self.now - before, self._size.num_seen, self._size.num_empty)
        if self.has_lanes:
            self._record_lanes(num_tokens, passed)
        return self.scheduler.update_from_output(plan, output)

    @property
    def _is_kept_out(self) -> bool:
        """True if there are requests, and none runs or is in flight."""
        scheduler = self.scheduler
        in_flight = (passed for _, passed in self.in_flight)
        return bool(scheduler.requests) and not (scheduler.running or any(in_flight))

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Send a plan through the stages: its tokens are known, and when they will be there."""
        requests = self.scheduler.requests.values()
        more_to_come = self._next_arrival is not None
        may_change = more_to_come or any(request.is_in_flight for request in requests)
        check_progress(self.scheduler, plan, may_change or not requests)
        future: Future[ModelRunnerOutput] = Future()
        output, self._size = self._forward(plan)
        future.set_result(output)
        num_tokens = self._size.num_tokens
        passed = []
        if num_tokens:
            self._let_plan_take_time()
            passed = self._pass()
        self.in_flight.append((num_tokens, passed))
        return future

    def _let_plan_take_time(self) -> None:
        self.clock.now += self.cpu.before
        if (trace := self.scheduler.trace) is not None:  # which has the plan's end already
            trace.records[-1] = StepPlanned(trace.step, trace.now())

    def _pass(self) -> list[tuple[float, float]]:
        """Start and end of the last plan in each stage."""
        ready = self.now
        passed = []
        size = self._size
        for index, stage in enumerate(self.stages):
            if index > 0:
                ready += self.stages[index - 1].send_seconds(size.num_tokens)
            start = max(ready, self.free_from[index])
            ready = start + stage.device_seconds(size.num_tokens, size.num_attended, size.num_kv)
            self.free_from[index] = ready
            passed.append((start, ready))
        return passed
