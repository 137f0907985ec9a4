"""Lab of notebook 27: which blocks of a window get a name, held to vLLM's own counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from minivllm.course.asking.answers import is_whole
from minivllm.course.ch27.recorded_cache import Filled, Group, walks
from minivllm.course.ch27.rules import worth_keeping
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_worth_keeping(blocks, window, block_size, interval, ends):
    """Which of these blocks does a group of windows register in the prefix cache?

    Args:
        blocks: numbers of the blocks in the table that have just been filled, in order.
        window: how many tokens a token sees, itself included; at least 2.
        block_size: tokens of a block.
        interval: a multiple of block_size, or 0. A request shall be able to go on behind each
            multiple of this many tokens; 0: there are no such places.
        ends: further places, in tokens, behind which a request shall be able to go on: multiples of
            block_size. 0 is none.

    To go on behind a place, a request needs the blocks that the window - 1 tokens in front of it
    touch, and no others.

    Returns: the numbers of the blocks to register, in order.
    """
    raise NotImplementedError


def check_worth_keeping(function: Callable, seed: int) -> str:
    recorded = (fact for fact in walks() if isinstance(fact, Filled))
    facts = list(_drawn(seed) if seed else recorded)
    for fact in facts:
        _check_blocks(function, fact)
    if seed:
        return f"{len(facts)} drawn fills, by the rule"
    return f"{len(facts)} fills, after which vLLM counted as many blocks in its cache"


def _drawn(seed: int) -> Iterator[Filled]:
    rng = Random(f"lab worth_keeping {seed}")
    for number in range(150):
        size = rng.choice([2, 4, 8])
        begin = rng.randint(0, 9)
        blocks = list(range(begin, begin + rng.randint(1, 12)))
        group = Group(size, rng.randint(2, 4 * size + 2))
        interval = rng.choice([0, 0, size, size * rng.randint(2, 8)])
        ends = (rng.randint(0, 20) * size, rng.choice([0, rng.randint(1, 20) * size]))
        yield Filled(f"seed {seed}, fill {number}", group, blocks, interval, ends)


def _check_blocks(function: Callable, fact: Filled) -> None:
    group = fact.group
    right = _kept(fact)
    got = call(
        function,
        list(fact.blocks),
        window=group.window,
        block_size=group.block_size,
        interval=fact.interval,
        ends=fact.ends,
    )
    if not isinstance(got, (list, tuple)) or not all(map(is_whole, got)):
        raise Fault("return a list of the blocks' numbers")
    if list(got) == right:
        return
    where = f"{fact.where}: blocks {fact.blocks}, window={group.window}, "
    where += f"block_size={group.block_size}, interval={fact.interval}, ends={fact.ends}: "
    raise WrongEntry(f"{where}not {list(got)}{_explain(list(got), fact, right)}", f"{right}")


def _explain(got: list, fact: Filled, right: list[int]) -> str:
    """Return the mistake that leads to these blocks, where it is a known one."""
    if not set(got) <= set(fact.blocks):
        return ", only blocks that have just been filled can be registered"
    if sorted(set(got)) != got:
        return ", each once, in order"
    size = fact.group.block_size
    mistakes = {
        ", a request shall also go on behind the places in ends": _kept(fact, ends=()),
        ", a request shall also go on behind each multiple of interval": _kept(fact, interval=0),
        ", this is a block more than window - 1 tokens touch": _kept(fact, more=size),
        ", window - 1 tokens touch one block more": _kept(fact, more=-size),
    }
    if why := next((why for why, blocks in mistakes.items() if blocks == got), ""):
        return why
    if more := set(got) - set(right):
        return f", block {min(more)} is not read behind any of these places"
    return f", block {min(set(right) - set(got))} is needed, too"


def _kept(
    fact: Filled,
    *,
    more: int = 0,
    interval: int | None = None,
    ends: tuple[int, ...] | None = None,
) -> list[int]:
    """Blocks to register; with a window of ``more`` tokens more, or another interval or ends."""
    return worth_keeping(
        fact.blocks,
        max(2, fact.group.window + more),
        fact.group.block_size,
        interval=fact.interval if interval is None else interval,
        ends=fact.ends if ends is None else ends,
    )


LAB = FunctionLab(
    "27",
    "Write the rule by which a window's blocks get a name.",
    "How many blocks are needed in front of a place? Then: is block i among the last of its "
    "segment, or among those that end at one of the places?",
    difficulty=3, minutes=20, stub=my_worth_keeping, check=check_worth_keeping,
    solution_module="minivllm.course.ch27.rules",
)  # fmt: skip
