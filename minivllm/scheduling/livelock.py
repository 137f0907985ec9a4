"""Detection of livelock, as when a policy never admits a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler

T = TypeVar("T")


class LivelockError(ValueError):
    """Livelock: requests wait, nothing runs, and no further request comes."""

    @classmethod
    def by(cls, scheduler: Scheduler) -> LivelockError:
        """Make the error, naming the scheduling policy."""
        return cls(
            f"scheduling_policy {type(scheduler.policy).__name__} admits no request: "
            f"{len(scheduler.requests)} unfinished requests wait, nothing runs and no further "
            "request comes. May may_admit() be False for good?"
        )


def check_progress(
    scheduler: Scheduler, scheduler_output: SchedulerOutput, more_to_come: bool = False
) -> None:
    """Raise ``LivelockError`` if, after ``schedule()``, no later step can schedule anything.

    That is so after a step that schedules and preempts nothing while nothing runs, unless further
    requests are to come.
    """
    happened = scheduler_output.num_scheduled_tokens or scheduler_output.preempted_req_ids
    may_change = happened or scheduler.running or more_to_come
    if scheduler.requests and not (may_change or _waits_for_others(scheduler)):
        raise LivelockError.by(scheduler)


def make_progress(scheduler: Scheduler, step: Callable[[], T]) -> T:
    """Run a step of the scheduler's engine. Returns its outputs.

    Raises:
        LivelockError: if nothing has changed and nothing runs: the next step would be the same.
    """
    before = _count_changes(scheduler)
    outputs = step()
    waits = scheduler.requests and not scheduler.running and before == _count_changes(scheduler)
    if waits and not _waits_for_others(scheduler):
        raise LivelockError.by(scheduler)
    return outputs


def _waits_for_others(scheduler: Scheduler) -> bool:
    """True while tokens, or K and V from elsewhere, are on their way."""
    return any(request.is_in_flight for request in scheduler.requests.values())


def _count_changes(scheduler: Scheduler) -> tuple[int, int, int]:
    """Counts that change where a step does anything but run what runs."""
    remote = scheduler.remote_kvs
    num_transfers = 0 if remote is None else remote.num_ended
    return scheduler.num_preemptions, len(scheduler.requests), num_transfers
