"""Scoreboard: how far a manager of the reader's goes with vLLM, in steps and in blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minivllm.course.grading.verdicts import first_difference
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.recordings import GOLDEN, load_recording
from minivllm.lab.sim.replay import replay_steps


@dataclass
class Cost:
    """Cost of some runs: steps, tokens computed, and the most blocks held, summed up."""

    steps: int = 0
    tokens: int = 0
    blocks: int = 0


@dataclass
class Score:
    """All recordings together; a step is equal if it and all before it are as vLLM's."""

    recordings: int = 0
    equal_recordings: int = 0
    equal_steps: int = 0
    mine: Cost = field(default_factory=Cost)
    vllm: Cost = field(default_factory=Cost)

    def __str__(self) -> str:
        mine = self.mine
        vllm = self.vllm
        return (
            f"{self.equal_recordings} of {self.recordings} recordings and {self.equal_steps:,} of "
            f"{vllm.steps:,} steps are vLLM's; {mine.steps:,} steps, {mine.tokens:,} tokens "
            f"computed, {mine.blocks:,} blocks at the peaks "
            f"(vLLM {vllm.steps:,}, {vllm.tokens:,}, {vllm.blocks:,})"
        )


def score(manager_cls: type[KVCacheManager]) -> Score:
    """Replay all recordings; one that raises counts up to there."""
    total = Score()
    for path in GOLDEN:
        recording = load_recording(path)
        usable = recording["config"]["num_gpu_blocks"] - 1
        theirs = recording["steps"]
        mine = []
        equal = 0
        goes_on = True
        try:
            for index, step in enumerate(replay_steps(recording, manager_cls)):
                mine.append(_used(step, usable))
                goes_on = (
                    goes_on and index < len(theirs) and not first_difference(theirs[index], step)
                )
                equal += goes_on
        except Exception:  # whatever a class of the reader's may raise
            goes_on = False
        total.recordings += 1
        total.equal_recordings += goes_on and equal == len(theirs)
        total.equal_steps += equal
        _add(total.mine, mine)
        _add(total.vllm, [_used(step, usable) for step in theirs])
    return total


def _used(step: dict[str, Any], usable: int) -> tuple[int, int]:
    """Tokens that a step computes, and blocks that are held in it."""
    return step.get("total", 0), usable - step.get("free_blocks", usable)


def _add(cost: Cost, steps: list[tuple[int, int]]) -> None:
    cost.steps += len(steps)
    cost.tokens += sum(tokens for tokens, _ in steps)
    cost.blocks += max((blocks for _, blocks in steps), default=0)
