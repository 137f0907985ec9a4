"""Replica: one engine in simulated time, whose stages take what the cost model says."""

from __future__ import annotations

from typing import Any, NamedTuple

from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.cluster import Cluster
from minivllm.lab.sim.cost import CostModel, attended_pairs
from minivllm.lab.sim.loop import run_step, runner_output
from minivllm.lab.sim.rank_lanes import record_stage
from minivllm.lab.sim.slot_usage import MemoryMeter
from minivllm.lab.sim.survivors import RandomSurvivors
from minivllm.logger import silenced
from minivllm.request import Request, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler


class Size(NamedTuple):
    """Counts of what a plan computes, and of the slots in use meanwhile."""

    num_tokens: int
    num_attended: int
    num_kv: int  # read and written
    num_seen: int  # of all running sequences, tokens with K and V
    num_empty: int  # and empty slots in their last blocks
    num_decodes: int = 0  # sequences with one new token
    num_decode_kv: int = 0  # tokens that these see


class Replica:
    """One engine of one stage: a plan is made, computed and ended before the next one.

    Args:
        scheduler: without requests.
        cost: of its steps.
        clock: of this replica's CPU, for its trace, too.
        api_waits: does the engine wait for the API server, as in one process? Else that one works
            meanwhile, in a lane of its own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel | Cluster,
        clock: Clock,
        api_waits: bool = False,
    ):
        self.scheduler = scheduler
        self.clock = clock
        self.stages: list[Any] = cost.stages
        self.has_lanes = scheduler.trace is not None and cost.num_ranks > 1
        self.cpu = cost.cpu
        self.api_waits = api_waits
        self.told = 0.0  # when the API server has sent the last tokens
        self.num_steps = 0
        self.memory = MemoryMeter(scheduler)
        self.survivors = RandomSurvivors()
        self.sent: list[Request] = []  # they join the queue at the next step
        self._has_stops = False
        self._next_arrival: float | None = None
        # requests of whose end the client has not heard, and when it will
        self.ended: dict[str, float] = {}

    @property
    def now(self) -> float:
        """Time at which the step before has ended, and the next one may begin."""
        return self.clock.now

    @property
    def has_work(self) -> bool:
        """True while ``step`` has something to do."""
        return bool(self.sent) or self.scheduler.has_unfinished_requests()

    @property
    def is_busy(self) -> bool:
        """True while a request may end here, or has ended and the client has not heard of it."""
        return bool(self.sent or self.ended or self.scheduler.running)

    def send(self, request: Request) -> None:
        """Send a request, which wakes an engine without work."""
        if not self.has_work:
            self.clock.wait_until(request.arrival_time)
        self.sent.append(request)
        self._has_stops |= bool(request.sampling_params.stop_token_ids)

    def step(self, next_arrival: float | None) -> list[Sequence]:
        """Let the engine make a call. Returns the sequences that have got a token by its end.

        Args:
            next_arrival: when a further request will be sent; None: none will be.

        Raises:
            ValueError: for a request that could never run.
            LivelockError: if nothing will ever change again.
        """
        for request in self.sent:
            self.scheduler.add_request(request)
        self.sent = []
        self._next_arrival = next_arrival
        with silenced("minivllm.scheduling.preemption"):
            updated = self._step()
        self._tell(len(updated))
        return updated

    def _tell(self, num_tokens: int) -> None:
        """Let the API server send new tokens, behind those before."""
        seconds = self.cpu.api_each * num_tokens
        if self.api_waits:
            self.clock.now += seconds
            self.told = self.now
        else:
            self.told = max(self.told, self.now) + seconds

    @property
    def num_wasted_tokens(self) -> int:
        """Number of tokens that came for sequences that had ended: none with one plan in flight."""
        return 0

    def _step(self) -> list[Sequence]:
        self.num_steps += 1
        more_to_come = self._next_arrival is not None
        return run_step(self.scheduler, self._execute, more_to_come).updated

    def _empty_step_seconds(self) -> float:
        """Seconds until a policy that keeps all out for now is asked again: those of an empty step.

        Where they are too few for the clock to move, it is asked when the next request comes.
        """
        seconds = self.stages[0].step_seconds(0, 0, 0)
        now = self.now
        if now + seconds > now or self._next_arrival is None:
            return seconds
        return max(0.0, self._next_arrival - now)

    def _execute(self, scheduler: Scheduler, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Take the model's place, and let the time of a step pass."""
        output, size = self._forward(plan)
        start = self.clock.now
        seconds = self._step_seconds(size)
        if not size.num_tokens:
            seconds = self._empty_step_seconds()
        if self.has_lanes and size.num_tokens:
            self._record_lanes(size.num_tokens, [(start, start + seconds)])
        seconds += self.cpu.update(len(plan.num_scheduled_tokens))
        self.memory.add(seconds, size.num_seen, size.num_empty)
        self.clock.now = start + seconds
        return output

    def _step_seconds(self, size: Size) -> float:
        """Seconds of a step of this size."""
        return self.stages[0].step_seconds(size.num_tokens, size.num_attended, size.num_kv)

    def _stop(self, plan: SchedulerOutput, sampled: dict[str, int]) -> None:
        """Put stop tokens in the place of the last tokens of answers that end by one."""
        parents = {child: name for name, forks in plan.forks.items() for child in forks}
        for name in sampled:
            seq = self.scheduler.sequences[parents.get(name, name)]
            params = seq.request.sampling_params
            number = seq.num_computed_tokens - seq.num_prompt_tokens + 1  # of this token
            if params.stop_token_ids and number == params.max_tokens - 1:
                sampled[name] = params.stop_token_ids[0]

    def _record_lanes(self, num_tokens: int, passed: list[tuple[float, float]]) -> None:
        """Record what the ranks did for the oldest plan, by start and end of it in each stage."""
        for stage, (start, end) in enumerate(passed):
            record_stage(
                self.scheduler.trace,
                self.stages,
                stage,
                num_tokens=num_tokens,
                start=start,
                end=end,
            )

    def _forward(self, plan: SchedulerOutput) -> tuple[ModelRunnerOutput, Size]:
        """Fake forward pass: repeats each sequence's last token, and counts.

        Every token of every sequence passes here, so cost and memory are counted in one loop.
        """
        scheduler = self.scheduler
        scheduled = plan.num_scheduled_tokens
        block_size = scheduler.kv_manager.block_size
        sampled = {}
        num_tokens = 0
        num_attended = 0
        num_kv = 0
        num_seen = 0
        num_empty = 0
        num_decodes = 0
        num_decode_kv = 0
        for seq in scheduler.running:
            seq_id = seq.seq_id
            token_ids = seq.token_ids
            context = seq.num_computed_tokens
            num_new = scheduled.get(seq_id, 0)
            num_seen += context
            num_empty += -context % block_size
            if num_new == 1:
                num_attended += context
                num_decodes += 1
                num_decode_kv += context
            elif num_new:
                num_attended += attended_pairs(context - num_new, num_new)
            else:
                continue  # it runs, but the budget did not reach it
            num_tokens += num_new
            num_kv += context
            if context >= len(token_ids):  # beyond them are placeholders
                sampled[seq_id] = token_ids[-1]
        for seq_id, children in plan.forks.items():
            for index, child_id in enumerate(children, 1):
                sampled[child_id] = sampled[seq_id] + (index << 32)  # an answer of its own
        if self._has_stops:
            self._stop(plan, sampled)
        beams = any(seq.request.beam_params is not None for seq in scheduler.running)
        survivors = self.survivors.draw(scheduler.sequences, sampled) if beams else None
        size = Size(
            num_tokens=num_tokens,
            num_attended=num_attended,
            num_kv=num_kv + num_tokens,
            num_seen=num_seen,
            num_empty=num_empty,
            num_decodes=num_decodes,
            num_decode_kv=num_decode_kv,
        )
        return runner_output(sampled, survivors), size
