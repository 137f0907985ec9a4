"""run: a scenario step by step with the class under test, and what each step decided."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minivllm.course.grading.scenarios import Scenario
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import TooManySteps, fake_execute, run_steps
from minivllm.scheduling.livelock import LivelockError
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler

MAX_STEPS = 300  # every scenario is done long before
# Folders of code that a reader has not written: this package, Python, and what is installed.
NOT_THE_READERS = (
    str(Path(__file__).parents[2]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Fault(Exception):
    """Something is wrong with the code under test; the message says what, and where.

    Args:
        message: one sentence.
        figure: what is drawn below it, if anything is.
    """

    def __init__(self, message: str, figure: Any = None):
        super().__init__(message)
        self.figure = figure


@dataclass(frozen=True)
class Moment:
    """Decisions of a step, before its forward pass."""

    step: int
    scheduler_output: SchedulerOutput
    num_tokens: dict[str, int]  # of every sequence that is not finished
    tables: dict[str, list[int]]
    ref_counts: dict[int, int]
    free: list[int]  # block ids, the next one first
    cached: set[int]  # block ids


def run(
    scenario: Scenario, manager_cls: type[KVCacheManager], check_integrity: bool
) -> Iterator[Moment]:
    """The moments of a run, one after the other.

    Args:
        scenario: what to serve.
        manager_cls: the class under test.
        check_integrity: let ``check_integrity`` look after every half of a step.

    Raises:
        Fault: if the code of the class raises, an invariant is broken, or it goes on for ever.
    """
    scheduled: list[Moment] = []  # what the latest step decided, until it is handed out

    def execute(scheduler: Scheduler, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        scheduled.append(_moment(step, scheduler, scheduler_output))
        if check_integrity:
            _check_counts(scheduler, step)
        return fake_execute(scheduler, scheduler_output)

    step = 0
    try:
        scheduler = scenario.scheduler(manager_cls)
        for _ in run_steps(scheduler, scenario.requests(), execute, max_steps=MAX_STEPS):
            yield scheduled.pop()
            if check_integrity:
                _check_counts(scheduler, step)
            step += 1
    except NotImplementedError:
        raise
    except Fault:
        yield from scheduled  # a wrong decision is told before what it led to
        raise
    except TooManySteps as error:
        raise Fault(str(error).rstrip(".")) from error
    except LivelockError as error:
        waiting = ", ".join(scheduler.requests)
        raise Fault(f"step {step}: nothing runs, and none is ever admitted: {waiting}") from error
    except Exception as error:
        yield from scheduled
        raise Fault(f"step {step}: {describe_error(error)}") from error


def _check_counts(scheduler: Scheduler, step: int) -> None:
    """The real checks, whatever the class under test has made of its own."""
    try:
        KVCacheManager.check_integrity(scheduler.kv_manager)
        scheduler.check_integrity()
    except AssertionError as error:
        raise Fault(f"step {step}: {error}") from error


def describe_error(error: BaseException) -> str:
    """Return what was raised, and by which line of the reader's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_THE_READERS)]
    where = f" in line {own[-1].lineno}, {own[-1].name}" if own else ""
    return f"{type(error).__name__}{where}: {error}"


def _moment(step: int, scheduler: Scheduler, scheduler_output: SchedulerOutput) -> Moment:
    manager = scheduler.kv_manager
    pool = manager.block_pool
    return Moment(
        step,
        scheduler_output,
        {seq.seq_id: seq.num_tokens for seq in scheduler.sequences.values()},
        tables={seq_id: table.block_ids for seq_id, table in manager.block_tables.items()},
        ref_counts={block.block_id: block.ref_cnt for block in pool.blocks},
        free=[block.block_id for block in pool.free_block_queue],
        cached={block.block_id for block in pool.blocks if block.block_hash is not None},
    )
