"""The engine's loop without a model: arrivals, ``schedule``, fake tokens, ``update_from_output``.

Memory and scheduling never look at what a token is, so everything that runs the real scheduler
without a model runs it from here: the simulator, dry runs, replays, labs, benchmarks and tests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from minivllm.lab.sim.clock import Clock
from minivllm.logger import silenced
from minivllm.request import Request, Sequence
from minivllm.scheduling.livelock import check_progress
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from minivllm.scheduling.scheduler import Scheduler

Execute = Callable[[Scheduler, SchedulerOutput], ModelRunnerOutput]


class Step(NamedTuple):
    """One finished step.

    Attributes:
        scheduler_output: what was scheduled.
        sampled: the next tokens of every sequence that got any.
        updated: the sequences that the scheduler appended a token to.
    """

    scheduler_output: SchedulerOutput
    sampled: dict[str, list[int]]
    updated: list[Sequence]


class TooManySteps(RuntimeError):
    """The limit of steps is reached, and some requests are not done."""


class Arrivals:
    """The requests that are still to come: a priority queue by time of arrival.

    Args:
        requests: each comes at its ``arrival_time``; of those that come together, in this order.
    """

    def __init__(self, requests: Iterable[Request] = ()):
        self._heap: list[tuple[float, int, Request]] = []
        for rank, request in enumerate(requests):
            self.push(request, rank)

    def push(self, request: Request, rank: int) -> None:
        """One more; of those that come together, the least rank is first."""
        heapq.heappush(self._heap, (request.arrival_time, rank, request))

    def pop_until(self, now: float) -> Iterator[Request]:
        """Those whose time has come, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def next_time(self) -> float:
        return self._heap[0][0]

    @property
    def has_room(self) -> bool:
        """True if the client sends each request when its time has come."""
        return True

    def __len__(self) -> int:
        return len(self._heap)


class LimitedArrivals(Arrivals):
    """Arrivals through a client that bounds the requests under way: a closed loop.

    Who finds no room is held back by the client, and arrives when an answer makes room. (vLLM:
    ``--max-concurrency`` of its benchmark)

    Args:
        under_way: ids of requests that have been sent and have not ended.
        max_concurrency: the most that there are at once.
    """

    def __init__(self, under_way: Collection[str], max_concurrency: int):
        super().__init__()
        self._under_way = under_way
        self._max_concurrency = max_concurrency
        self._was_full = False

    def pop_until(self, now: float) -> Iterator[Request]:
        due = super().pop_until(now)
        while self.has_room and (request := next(due, None)) is not None:
            if self._was_full:
                request.arrival_time = request.metrics.arrival_time = now
            yield request
        self._was_full = not self.has_room

    @property
    def has_room(self) -> bool:
        """False while as many are under way as there may be; the next one waits for an end."""
        return len(self._under_way) < self._max_concurrency


def fake_tokens(token_ids: list[int], n: int) -> list[int]:
    """The next ``n`` tokens of the made-up model.

    Each is a function of all tokens so far, so that a lost one shows.
    """
    total = sum(token_ids)
    num_tokens = len(token_ids)
    made = []
    for _ in range(n):
        made.append((total + num_tokens) % 1000 + 5)
        total += made[-1]
        num_tokens += 1
    return made


def fake_execute(scheduler: Scheduler, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
    """One of ``fake_tokens`` for every sequence that this step lets catch up, and for its forks.

    Behind drafts that are right there are as many more. A pooling request gets no token, and ends.
    """
    known = {
        name: scheduler.sequences[name].token_ids for name in scheduler_output.num_scheduled_tokens
    }
    sampled = fake_samples(scheduler_output, known)
    if scheduler.config.num_sampled_tokens_per_step == 0:
        return ModelRunnerOutput(pooler_output=dict.fromkeys(sampled))
    return ModelRunnerOutput(sampled)


def fake_samples(
    scheduler_output: SchedulerOutput, known: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """``fake_tokens`` of a plan, by sequence: of all whose last known token it computes, and forks.

    Args:
        scheduler_output: the plan.
        known: token ids of its sequences.
    """
    sampled = {}
    for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
        if scheduler_output.num_computed_tokens[seq_id] + num_new < len(known[seq_id]):
            continue  # a chunk: the prompt goes on in a later step
        drafts = scheduler_output.scheduled_spec_decode_tokens.get(seq_id, [])
        tokens = fake_tokens(known[seq_id], len(drafts) + 1)
        for sibling_id in (seq_id, *scheduler_output.forks.get(seq_id, ())):
            sampled[sibling_id] = tokens[: 1 + num_accepted(drafts, tokens)]
    return sampled


def num_accepted(drafts: list[int], tokens: list[int]) -> int:
    """Number of leading drafts that are what the model says."""
    pairs = enumerate(zip(drafts, tokens, strict=False))
    return next((i for i, (draft, token) in pairs if draft != token), len(drafts))


def runner_output(
    tokens: dict[str, int], logprobs: Mapping[str, TokenLogprobs] | None = None
) -> ModelRunnerOutput:
    """ModelRunnerOutput of one sampled token per sequence."""
    return ModelRunnerOutput(
        {seq_id: [token_id] for seq_id, token_id in tokens.items()},
        {seq_id: [found] for seq_id, found in (logprobs or {}).items()},
    )


def run_step(
    scheduler: Scheduler, execute: Execute = fake_execute, more_to_come: bool = False
) -> Step:
    """Schedule, execute, update.

    Args:
        scheduler: with requests in it.
        execute: takes the model's place; the scheduler is then in the middle of a step.
        more_to_come: will further requests be added?

    Raises:
        LivelockError: if nothing will ever change again.
    """
    scheduler_output = scheduler.schedule()
    check_progress(scheduler, scheduler_output, more_to_come)
    output = execute(scheduler, scheduler_output)
    updated = scheduler.update_from_output(scheduler_output, output)
    return Step(scheduler_output, output.sampled_token_ids, updated)


def run_steps(
    scheduler: Scheduler,
    requests: Iterable[Request] | Arrivals = (),
    execute: Execute = fake_execute,
    clock: Clock | None = None,
    max_steps: int | None = None,
) -> Iterator[Step]:
    """Serve until no request waits, runs or is still to come; a step is yielded when it is done.

    Args:
        scheduler: may have requests in it already.
        requests: each joins the queue at its ``arrival_time``. ``Arrivals`` may be pushed to
            between two steps.
        execute: takes the model's place.
        clock: seconds, to which ``execute`` adds; an idle engine waits for the next request. None:
            the time is the number of steps so far.
        max_steps: when to give up.

    Raises:
        LivelockError: if a policy or a manager refuses everyone for good.
        TooManySteps: if some are not done after ``max_steps``.
    """
    arrivals = requests if isinstance(requests, Arrivals) else Arrivals(requests)
    num_steps = 0
    while arrivals or scheduler.has_unfinished_requests():
        if num_steps == max_steps:
            raise TooManySteps(
                f"after {max_steps} steps some are not done: {', '.join(scheduler.requests)}."
            )
        if clock is not None and not scheduler.requests:
            clock.wait_until(arrivals.next_time)
        for request in arrivals.pop_until(num_steps if clock is None else clock.now):
            scheduler.add_request(request)
        with silenced("minivllm.scheduling.preemption"):
            step = run_step(scheduler, execute, more_to_come=bool(arrivals))
        yield step
        num_steps += 1
