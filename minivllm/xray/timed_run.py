"""TimedRun, OverlappedRun: our scheduler on a run's arrivals, in the time that its steps cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

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
        measured: the recorded run: when it began, and when requests were aborted.
        requests: as they arrive.
        ends: number of tokens at the end of a request, by id.
        cost: of a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        measured: Walk,
        requests: Iterable[Request],
        ends: Mapping[str, int],
        cost: StepCost,
    ):
        self.scheduler, self.ends, self.cost = scheduler, ends, cost
        self.interruptions = deque(cost.interruptions)
        self.arrivals = Arrivals(requests)
        self.tokens: dict[str, list[int]] = {}
        self.aborts: dict[str, float] = {}  # the times of those that are still to come
        for record in measured.trace.records:
            if isinstance(record, Sampled):
                self.tokens.setdefault(record.seq_id, []).append(record.token_id)
            elif isinstance(record, Finished) and record.reason == "abort":
                self.aborts[record.seq_id] = measured.ends[record.seq_id]
        self.now = measured.rows[0].start if measured.rows else 0.0

    def run(self) -> None:
        """Run until all requests have ended."""
        for step in run_steps(self.scheduler, self.arrivals, self._execute, self._moment):
            self._pause(len(step.scheduler_output.num_scheduled_tokens))

    def _pause(self, num_seqs: int) -> None:
        """Let the time behind a step pass, and the users abort who did."""
        self.now += self.cost.pause_seconds(num_seqs)
        due = [n for n, t in self.aborts.items() if t <= self.now and n in self.scheduler.requests]
        self.scheduler.finish_requests(due, RequestStatus.FINISHED_ABORTED)

    def _moment(self) -> float:
        """The time before a step: an idle engine waits for the next request."""
        if not self.scheduler.requests:
            self.now = max(self.now, self.arrivals.next_time)
        return self.now

    def _execute(self, scheduler: Scheduler, plan: SchedulerOutput) -> ModelRunnerOutput:
        output, size = self._compute(plan)
        self.now += self.cost.seconds_alone(size)
        self._be_interrupted()
        return output

    def _be_interrupted(self) -> None:
        while self.interruptions and self.interruptions[0].time <= self.now:
            self.now += self.interruptions.popleft().seconds

    def _compute(self, plan: SchedulerOutput) -> tuple[ModelRunnerOutput, tuple[float, ...]]:
        """The tokens that were recorded, and what a plan's time depends on."""
        sampled = {}
        num_tokens = num_keys = 0
        for name, num_new in plan.num_scheduled_tokens.items():
            seq = self.scheduler.sequences[name]
            context = plan.num_computed_tokens[name] + num_new
            num_tokens, num_keys = num_tokens + num_new, num_keys + context
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
        self.queue = BatchQueue(self.scheduler, size=2)
        self.free = self.now  # when the device has done all plans
        self.device_ends: deque[float] = deque()  # of plans in flight

    def run(self) -> None:
        """Run until all requests have ended, and all plans."""
        while self.arrivals or self.queue.has_work:
            if not self.queue.has_work:
                self._moment()
            for request in self.arrivals.pop_until(self.now):
                self.scheduler.add_request(request)
            with silenced("minivllm.scheduling.preemption"):
                oldest = self.queue.advance(self._launch)
            if oldest is not None:
                self._end(*oldest)

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        requests = self.scheduler.requests.values()
        in_flight = any(request.is_in_flight for request in requests)
        check_progress(self.scheduler, plan, bool(self.arrivals) or in_flight or not requests)
        output, size = self._compute(plan)
        if num_seqs := len(plan.num_scheduled_tokens):
            self.now += self.cost.plan_seconds(num_seqs)
            if (trace := self.scheduler.trace) is not None:  # which has the plan's end already
                trace.records[-1] = StepPlanned(trace.step, trace.now())
            self.free = max(self.free, self.now) + self.cost.device_seconds(size)
        self.device_ends.append(self.free if num_seqs else self.now)
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future

    def _end(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """Wait for the device, and take the tokens; only now is it known which ones end answers."""
        self.now = max(self.now, self.device_ends.popleft())
        self._be_interrupted()
        for name in output.sampled_token_ids:
            seq = self.scheduler.sequences[name]
            if seq.num_output_tokens + 1 == self.ends.get(name):
                seq.request.sampling_params.max_tokens = self.ends[name]
        self.scheduler.update_from_output(plan, output)
        if plan.num_scheduled_tokens:
            self._pause(len(plan.num_scheduled_tokens))
