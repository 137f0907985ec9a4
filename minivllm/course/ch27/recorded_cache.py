"""Recordings of vLLM with groups, walked: what its prefix cache held, found, and took in.

A recording has the block ids of every request, so it is known which block each id is of, and when
it is given out again. Which of them have a name is followed by the rules of the labs, and counted
by the recording after each step. A walk ends at the first preemption: blocks that a victim took in
the same step are not in the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

from minivllm.course.ch27.rules import Lookup, agree, worth_keeping
from minivllm.lab.sim.recordings import HYBRID_GOLDEN, load_recording


@dataclass(frozen=True)
class Group:
    """One group of a recording; ``window`` is None for full attention."""

    block_size: int
    window: int | None


@dataclass(frozen=True)
class LookedUp:
    """A request looks for its prompt.

    Attributes:
        where: recording and step.
        num_tokens: the most that may be found.
        kinds: (group, for each block whether it can be found), in the order of asking.
        alignment: a hit is a multiple of this many tokens.
        recorded: tokens that vLLM found, and the junction that it remembered.
    """

    where: str
    num_tokens: int
    kinds: list[tuple[Group, list[bool]]]
    alignment: int
    recorded: tuple[int, int]

    @property
    def lookups(self) -> list:
        """A function for each kind, as ``agree`` takes them."""
        return [
            Lookup(found, group.window, group.block_size, self.alignment)
            for group, found in self.kinds
        ]


@dataclass(frozen=True)
class Filled:
    """Blocks of a window's group have just been filled.

    Attributes:
        where: recording, step and request.
        group: of which they are.
        blocks: their numbers in the table.
        interval: tokens of a segment; 0: there are none.
        ends: places, in tokens, in front of which blocks are kept.
    """

    where: str
    group: Group
    blocks: list[int]
    interval: int
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Counted:
    """After a step: blocks that have a name, in each group, as followed and as recorded."""

    where: str
    followed: list[int]
    recorded: list[int]


class RecordedCache:
    """The prefix cache of one recording, followed by its block ids."""

    def __init__(self, name: str, recording: dict[str, Any]):
        config = recording["config"]
        self.name = name
        self.steps = recording["steps"]
        self.groups = [
            Group(entry["block_size"], entry.get("sliding_window")) for entry in config["groups"]
        ]
        self.alignment = lcm(*(group.block_size for group in self.groups))
        self.interval = config["prefix_cache_retention_interval"]
        self.tokens = {r["id"]: list(r["prompt_token_ids"]) for r in recording["requests"]}
        self.num_prompt = {request_id: len(ids) for request_id, ids in self.tokens.items()}
        self.tables: dict[str, list[list[int]]] = {}
        self.passed: dict[tuple[str, int], int] = {}  # blocks that were looked at
        self.junctions: dict[str, int] = {}
        self.names: list[dict[int, tuple]] = [{} for _ in self.groups]  # by block id

    def walk(self) -> Iterator[LookedUp | Filled | Counted]:
        """Facts, in order."""
        for step in self.steps:
            if "scheduled" not in step:
                continue
            if step["preempted"]:
                return
            where = f"recording {self.name}, step {step['step']}"
            for entry in step["scheduled"]:
                if entry["kind"] != "running":
                    yield self._looked_up(entry, where)
                self._take(entry)
                yield from self._fill(entry, where)
            followed = [len(names) for names in self.names]
            yield Counted(where, followed, step["cached"])
            for request_id, token_id in step["sampled"].items():
                self.tokens[request_id].append(token_id)

    def _name(self, request_id: str, group: Group, block: int) -> tuple:
        """All tokens up to a block's end, by which it is found."""
        return tuple(self.tokens[request_id][: (block + 1) * group.block_size])

    def _looked_up(self, entry: dict, where: str) -> LookedUp:
        request_id = entry["id"]
        most = (len(self.tokens[request_id]) - 1) // self.alignment * self.alignment
        kinds: dict[Group, list[bool]] = {}
        for group, names in zip(self.groups, self.names, strict=True):
            there = set(names.values())
            found = [
                self._name(request_id, group, i) in there for i in range(most // group.block_size)
            ]
            others = kinds.get(group, found)  # groups of one kind must all have a block
            kinds[group] = [one and other for one, other in zip(found, others, strict=True)]
        in_order = sorted(kinds.items(), key=lambda item: item[0].window is not None)
        recorded = entry["num_cached"], entry.get("shared_prefix_boundary", 0)
        self.junctions[request_id] = recorded[1]
        return LookedUp(where, most, in_order, self.alignment, recorded)

    def _take(self, entry: dict) -> None:
        """Forget names of what is given out again. A hit is passed over when blocks are named."""
        for index, group in enumerate(self.groups):
            new = entry["new_block_ids"][index]
            if entry["kind"] != "running":
                hit = entry["num_cached"] // group.block_size
                self.passed[entry["id"], index] = hit
                new = new[hit:]
            for names in self.names:
                for block_id in new:
                    names.pop(block_id, None)
        self.tables[entry["id"]] = entry["block_ids"]

    def _fill(self, entry: dict, where: str) -> Iterator[Filled]:
        request_id = entry["id"]
        computed = entry["num_computed"] + entry["num_scheduled"]
        computed = min(computed, len(self.tokens[request_id])) // self.alignment * self.alignment
        for index, group in enumerate(self.groups):
            table = self.tables[request_id][index]
            begin = self.passed[request_id, index]
            end = max(begin, computed // group.block_size)
            self.passed[request_id, index] = end
            kept = [i for i in range(begin, end) if table[i]]
            if kept and group.window is not None:
                filled = self._filled(request_id, group, kept, where)
                kept = worth_keeping(
                    filled.blocks,
                    group.window,
                    group.block_size,
                    interval=filled.interval,
                    ends=filled.ends,
                )
                yield filled
            for i in kept:
                self.names[index][table[i]] = self._name(request_id, group, i)

    def _filled(self, request_id: str, group: Group, blocks: list[int], where: str) -> Filled:
        ends: tuple[int, ...] = ()
        if self.interval is not None:
            places = (self.num_prompt[request_id] - 1, self.junctions[request_id])
            ends = tuple(place // self.alignment * self.alignment for place in places)
        interval = self.alignment if self.interval is None else self.interval
        return Filled(f"{where}, {request_id}", group, blocks, interval, ends)


def walks(paths: list[Path] = HYBRID_GOLDEN) -> Iterator[LookedUp | Filled | Counted]:
    """Facts of each recording that has a prefix cache."""
    for path in paths:
        recording = load_recording(path)
        if recording["config"]["enable_prefix_caching"]:
            yield from RecordedCache(path.name.split(".")[0], recording).walk()


def lookups() -> Iterator[LookedUp]:
    """Every look-up of the recordings."""
    return (fact for fact in walks() if isinstance(fact, LookedUp))


def right_answer(fact: LookedUp) -> tuple[int, int]:
    """Tokens found, and the junction, by the rules."""
    return agree(fact.lookups, fact.num_tokens)
