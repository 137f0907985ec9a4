"""TimedRun, OverlappedRun: our scheduler on a run's arrivals, in the time that its steps cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.loop import Arrivals, run_steps
from minivllm.logger import silenced
from minivllm.request import Request, RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.livelock import check_progress
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace.records import Finished, Sampled, StepPlanned
from minivllm.xray.fit import StepCost, features
from minivllm.xray.waits import Walk


class TimedRun:
    """A run of our scheduler, whose clock advances by the cost of each step.

    Args:
        scheduler: without requests.
        measured: the recorded run: its tokens, and when requests were aborted.
        cost: of a step.
        clock: at the time of the run's beginning.
        ends: number of tokens at the end of a request, by id.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        measured: Walk,
        cost: StepCost,
        clock: Clock,
        ends: Mapping[str, int],
    ):
        self.scheduler = scheduler
        self.cost = cost
        self.clock = clock
        self.ends = ends
        self.interruptions = deque(cost.interruptions)
        self.tokens: dict[str, list[int]] = {}
        self.aborts: dict[str, float] = {}  # the times of those that are still to come
        for record in measured.trace.records:
            if isinstance(record, Sampled):
                self.tokens.setdefault(record.seq_id, []).append(record.token_id)
            elif isinstance(record, Finished) and record.reason == "abort":
                self.aborts[record.seq_id] = measured.ends[record.seq_id]

    def run(self, requests: Iterable[Request]) -> None:
        """Run until all requests have ended, each from when it arrives."""
        for step in run_steps(self.scheduler, requests, self._execute, clock=self.clock):
            self._pause(len(step.scheduler_output.num_scheduled_tokens))

    def _pause(self, num_seqs: int) -> None:
        """Let the time behind a step pass, and the users abort who did."""
        self.clock.now += self.cost.pause_seconds(num_seqs)
        now = self.clock.now
        alive = self.scheduler.requests
        due = [name for name, time in self.aborts.items() if time <= now and name in alive]
        self.scheduler.finish_requests(due, RequestStatus.FINISHED_ABORTED)

    def _execute(self, scheduler: Scheduler, plan: SchedulerOutput) -> ModelRunnerOutput:
        output, size = self._compute(plan)
        self.clock.now += self.cost.seconds_alone(size)
        self._be_interrupted()
        return output

    def _be_interrupted(self) -> None:
        while self.interruptions and self.interruptions[0].time <= self.clock.now:
            self.clock.now += self.interruptions.popleft().seconds

    def _compute(self, plan: SchedulerOutput) -> tuple[ModelRunnerOutput, tuple[float, ...]]:
        """The tokens that were recorded, and what a plan's time depends on."""
        sampled = {}
        num_tokens = num_keys = 0
        for name, num_new in plan.num_scheduled_tokens.items():
            seq = self.scheduler.sequences[name]
            context = plan.num_computed_tokens[name] + num_new
            num_tokens += num_new
            num_keys += context
            if context >= seq.num_tokens:
                known = self.tokens.get(name, [])
                done = context - seq.num_prompt_tokens
                sampled[name] = [known[done] if done < len(known) else 0]
        size = features(num_tokens, len(plan.num_scheduled_tokens), num_keys)
        return ModelRunnerOutput(sampled), size


class OverlappedRun(TimedRun):
    """A run with two plans in flight, in two lanes: one is made while the device has the other."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.arrivals = Arrivals()
        self.queue = BatchQueue(self.scheduler, size=2)
        self.free = self.clock.now  # when the device has done all plans
        self.device_ends: deque[float] = deque()  # of plans in flight

    def run(self, requests: Iterable[Request]) -> None:
        """Run until all requests have ended, each from when it arrives, and all plans."""
        self.arrivals = Arrivals(requests)
        while self.arrivals or self.queue.has_work:
            if not self.queue.has_work:
                self.clock.wait_until(self.arrivals.next_time)
            for request in self.arrivals.pop_until(self.clock.now):
                self.scheduler.add_request(request)
            with silenced("minivllm.scheduling.preemption"):
                oldest = self.queue.advance(self._launch)
            if oldest is not None:
                plan, output = oldest
                self._end(plan, output)

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        requests = self.scheduler.requests.values()
        in_flight = any(request.is_in_flight for request in requests)
        check_progress(self.scheduler, plan, bool(self.arrivals) or in_flight or not requests)
        output, size = self._compute(plan)
        if num_seqs := len(plan.num_scheduled_tokens):
            self.clock.now += self.cost.plan_seconds(num_seqs)
            if (trace := self.scheduler.trace) is not None:  # which has the plan's end already
                trace.records[-1] = StepPlanned(trace.step, trace.now())
            self.free = max(self.free, self.clock.now) + self.cost.device_seconds(size)
        self.device_ends.append(self.free if num_seqs else self.clock.now)
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future

    def _end(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """Wait for the device, and take the tokens; only now is it known which ones end answers."""
        self.clock.wait_until(self.device_ends.popleft())
        self._be_interrupted()
        for name in output.sampled_token_ids:
            seq = self.scheduler.sequences[name]
            if seq.num_output_tokens + 1 == self.ends.get(name):
                seq.request.sampling_params.max_tokens = self.ends[name]
        self.scheduler.update_from_output(plan, output)
        if plan.num_scheduled_tokens:
            self._pause(len(plan.num_scheduled_tokens))
