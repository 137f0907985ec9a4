"""A policy may keep everybody waiting for good; a run without a model must not wait with them."""

from __future__ import annotations

from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler


def check_progress(
    scheduler: Scheduler, scheduler_output: SchedulerOutput, more_to_come: bool = False
) -> None:
    """Raise ``ValueError`` if nothing will ever change again.

    That is so after a step that schedules and preempts nothing while nothing runs, unless somebody
    is still to come.

    Args:
        scheduler: just after its ``schedule()``.
        plan: what that returned.
        more_to_come: will further requests be added?
    """
    happened = scheduler_output.num_scheduled_tokens or scheduler_output.preempted_req_ids
    if not (happened or scheduler.running or more_to_come):
        raise ValueError(
            f"scheduling_policy {type(scheduler.policy).__name__} admits nobody: "
            f"{len(scheduler.requests)} unfinished requests wait, nothing runs and nobody else "
            "will come. May may_admit() be False for good?"
        )
