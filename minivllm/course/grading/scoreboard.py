"""Scoreboard: how far an engine with a reader's pieces goes with vLLM, in steps and in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from minivllm.course.grading.planned import PlannedScheduler
from minivllm.course.grading.verdicts import first_difference
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.recordings import GOLDEN, load_recording
from minivllm.lab.sim.replay import replay_steps

MOST_STEPS = 4  # times those of vLLM: a run that takes more may never end


@dataclass
class Cost:
    """Cost of some runs: steps, tokens computed, and the most blocks held, summed up."""

    steps: int = 0
    tokens: int = 0
    blocks: int = 0


@dataclass
class Score:
    """All recordings together; a step is equal if it and all before it are as vLLM's.

    Attributes:
        recordings: how many there are.
        equal_recordings: those in which every step is equal, with a piece of the reader's at work.
        equal_steps: of all recordings.
        mine, vllm: what the runs cost.
        equal_with: by piece, the equal recordings that it was at work in.
        planned_steps: those that the reader's plan decided.
    """

    recordings: int = 0
    equal_recordings: int = 0
    equal_steps: int = 0
    mine: Cost = field(default_factory=Cost)
    vllm: Cost = field(default_factory=Cost)
    equal_with: Counter[str] = field(default_factory=Counter)
    planned_steps: int = 0

    def __str__(self) -> str:
        mine = self.mine
        vllm = self.vllm
        return (
            f"{self.equal_recordings} of {self.recordings} recordings and {self.equal_steps:,} of "
            f"{vllm.steps:,} steps are vLLM's; {mine.steps:,} steps, {mine.tokens:,} tokens "
            f"computed, {mine.blocks:,} blocks at the peaks "
            f"(vLLM {vllm.steps:,}, {vllm.tokens:,}, {vllm.blocks:,})"
        )


@dataclass
class _Replayed:
    """One recording with some pieces of the reader's."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    equal_steps: int = 0
    is_equal: bool = False
    planned_steps: int = 0


Engine = tuple[type[KVCacheManager], Callable[..., Any] | None]  # who has the blocks, who plans


def score(pieces: Collection[str], make_engine: Callable[..., Engine]) -> Score:
    """Replay all recordings with a reader's pieces; whatever a run raises, it counts up to there.

    Each piece is tried alone in every recording, where it is asked at all. Those that are right in
    a recording run together in it; if none is, the one that goes furthest counts. So a piece that
    is not right yet takes nothing from the others.

    Args:
        pieces: names of those that are begun.
        make_engine: called with names, returns an engine with these pieces; the others are ours.
    """
    total = Score()
    for path in GOLDEN:
        recording = load_recording(path)
        best = _best(recording, pieces, make_engine, total.equal_with)
        usable = recording["config"]["num_gpu_blocks"] - 1
        total.recordings += 1
        total.equal_recordings += best.is_equal
        total.equal_steps += best.equal_steps
        total.planned_steps += best.planned_steps
        _add(total.mine, best.steps)
        _add(total.vllm, [_used(step, usable) for step in recording["steps"]])
    return total


def _best(
    recording: dict[str, Any],
    pieces: Collection[str],
    make_engine: Callable[..., Engine],
    equal_with: Counter[str],
) -> _Replayed:
    alone = {}
    for name in pieces:
        replayed = _replay(recording, *make_engine(name))
        is_asked = {
            "cache": recording["config"]["enable_prefix_caching"],
            "plan": replayed.planned_steps > 0,
        }
        if is_asked.get(name, True):
            alone[name] = replayed
    best = max(alone.values(), key=lambda each: each.equal_steps, default=_Replayed())
    right = [name for name, replayed in alone.items() if replayed.is_equal]
    if len(right) > 1:
        together = _replay(recording, *make_engine(*right))
        if together.is_equal:
            best = together
        else:
            right = right[:1]
    equal_with.update(right)
    return best


def _replay(
    recording: dict[str, Any],
    manager_cls: type[KVCacheManager],
    planner: Callable[..., Any] | None,
) -> _Replayed:
    done = _Replayed()

    def planned(*state: Any, **limits: Any) -> Any:
        done.planned_steps += 1
        return planner(*state, **limits)

    scheduler_cls = None
    if planner is not None:
        scheduler_cls = type("Planned", (PlannedScheduler,), {"planner": staticmethod(planned)})
    usable = recording["config"]["num_gpu_blocks"] - 1
    theirs = recording["steps"]
    goes_on = True
    try:
        for index, step in enumerate(replay_steps(recording, manager_cls, scheduler_cls)):
            if index == MOST_STEPS * len(theirs):
                break
            done.steps.append(_used(step, usable))
            goes_on = goes_on and index < len(theirs) and not first_difference(theirs[index], step)
            done.equal_steps += goes_on
    except Exception:  # whatever a piece of the reader's may raise
        goes_on = False
    done.is_equal = goes_on and done.equal_steps == len(theirs)
    return done


def _used(step: dict[str, Any], usable: int) -> tuple[int, int]:
    """Tokens that a step computes, and blocks that are held in it."""
    return step.get("total", 0), usable - step.get("free_blocks", usable)


def _add(cost: Cost, steps: list[tuple[int, int]]) -> None:
    cost.steps += len(steps)
    cost.tokens += sum(tokens for tokens, _ in steps)
    cost.blocks += max((blocks for _, blocks in steps), default=0)
