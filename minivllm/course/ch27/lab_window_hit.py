"""Lab of notebook 27: what a group of windows finds, held to vLLM's own look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from minivllm.course.asking.answers import is_whole
from minivllm.course.ch27.recorded_cache import lookups
from minivllm.course.ch27.rules import full_hit, window_hit
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_window_hit(found, window, block_size, alignment):
    """How many tokens of a prompt does a group of sliding windows find?

    Args:
        found: for each full block of the prompt that may be found, True if it is in the cache.
        window: how many tokens a token sees, itself included; at least 2.
        block_size: tokens of a block.
        alignment: a hit must be a multiple of this many tokens, and so of block_size.

    The token behind a hit sees window - 1 tokens of it. The blocks that these touch, if the hit
    ends with a block, must be there; what is in front of them is not read. Of several hits the
    longest counts. A hit with fewer blocks than that is one only if all its blocks are there, from
    the first one on.
    """
    raise NotImplementedError


def check_window_hit(function: Callable, seed: int) -> str:
    calls = list(_drawn(seed) if seed else _recorded())
    for found, window, block_size, alignment in calls:
        _check_call(function, found, window, block_size=block_size, alignment=alignment)
    if seed:
        return f"{len(calls)} look-ups in drawn caches, by the rule"
    return f"{len(calls)} look-ups, equal to what vLLM's groups of windows found"


def _recorded() -> Iterator[tuple[list[bool], int, int, int]]:
    for fact in lookups():
        most = fact.num_tokens
        for (group, found), lookup in zip(fact.kinds, fact.lookups, strict=True):
            if group.window is not None:
                asked = found[: most // group.block_size]
                yield asked, group.window, group.block_size, fact.alignment
            most = lookup(most)


def _drawn(seed: int) -> Iterator[tuple[list[bool], int, int, int]]:
    rng = Random(f"lab window_hit {seed}")
    for _ in range(200):
        block_size = rng.choice([1, 2, 4, 8])
        density = rng.choice([0.5, 0.7, 0.9])
        found = [rng.random() < density for _ in range(rng.randint(0, 14))]
        window = rng.randint(2, 5 * block_size + 2)
        yield found, window, block_size, block_size * rng.choice([1, 1, 1, 2, 3])


def _check_call(
    function: Callable, found: list[bool], window: int, block_size: int, alignment: int
) -> None:
    right = window_hit(found, window, block_size, alignment)
    got = call(function, list(found), window, block_size, alignment)
    if got == right and is_whole(got):
        return
    if not is_whole(got):
        raise Fault(f"return a whole number of tokens, not {got!r}")
    drawn = "".join("x" if there else "." for there in found)
    where = f"found {drawn!r} (x is there), window={window}, block_size={block_size}, "
    where += f"alignment={alignment}: not {got}"
    why = _explain(got, found, window, block_size=block_size, alignment=alignment)
    raise WrongEntry(f"{where}{why}", str(right))


def _explain(got: int, found: list[bool], window: int, block_size: int, alignment: int) -> str:
    """Return the mistake that leads to this number, where it is a known one."""
    longest = len(found) * block_size
    if got > longest:
        return f", only {longest} tokens may be found"
    if got % alignment:
        return ", a hit is a multiple of alignment"
    right = window_hit(found, window, block_size, alignment)
    if got < right and got == full_hit(found, block_size, alignment):
        return ", that is what full attention finds: a window needs only the end of a hit"
    if got == window_hit(found, window + block_size, block_size, alignment):
        return ", window - 1 tokens are read, and this asks for a block more than they touch"
    if got > right and got == window_hit(found, max(2, window - block_size), block_size, alignment):
        return ", the tokens that are read touch one block more"
    if got < right:
        return ", a longer hit is there: look from the right"
    return ", a block that the next token reads is not there"


LAB = FunctionLab(
    "27",
    "Write the look-up of a group of windows.",
    "Go from the right, and count blocks that are there side by side; a gap begins anew. How many "
    "are enough, and which may be the last of a hit?",
    difficulty=3, minutes=20, stub=my_window_hit, check=check_window_hit,
    solution_module="minivllm.course.ch27.rules",
)  # fmt: skip
