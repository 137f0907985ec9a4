"""Lab of notebook 27: the hit on which all kinds of layers agree, held to vLLM's admissions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from minivllm.course.ch27.recorded_cache import Group, LookedUp, lookups
from minivllm.course.ch27.rules import agree
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_agree(lookups, num_tokens):
    """Return the hit of a request whose layers are of several kinds, and its junction.

    Args:
        lookups: a function for each kind, full attention first. Called with a number of tokens, it
            says how many of these are a hit of its kind: at most as many, and perhaps fewer. Full
            attention has any part of its hit, too. A window that has a hit of 20 tokens may have
            none of 12: ask again.
        num_tokens: the most that may be found.

    Returns: a pair (hit, junction). The hit is the most tokens of which each kind says that it has
    them: begin with num_tokens, and hand what one kind says to the next, until none says less. The
    junction is the most that a single look-up found on the way, if that is more than the hit, else
    0: others have computed these tokens, too.
    """
    raise NotImplementedError


def check_agree(function: Callable, seed: int) -> str:
    recorded = [] if seed else list(lookups())
    drawn = list(_drawn(seed))
    for fact in (*recorded, *drawn):
        _check_request(function, fact)
    told = f"{len(drawn)} drawn requests, by the rule"
    if seed:
        return told
    return f"{len(recorded)} requests that vLLM admitted, with its hits and junctions; {told}"


def _drawn(seed: int) -> Iterator[LookedUp]:
    rng = Random(f"lab agree {seed}")
    for number in range(120):
        kinds = [(Group(4, None), rng.randint(4, 12))]
        for window in rng.sample(range(2, 22), rng.randint(1, 3)):
            kinds.append((Group(4, window), rng.randint(2, 9)))
        found = [
            (group, [rng.random() < dense / 10 + 0.2 for _ in range(12)]) for group, dense in kinds
        ]
        right = agree(LookedUp("", 48, found, 4, (0, 0)).lookups, 48)
        yield LookedUp(f"seed {seed}, request {number}", 48, found, 4, right)


def _check_request(function: Callable, fact: LookedUp) -> None:
    got = call(function, fact.lookups, fact.num_tokens)
    if not isinstance(got, (list, tuple)) or len(got) != 2:
        raise Fault("return a pair: the hit and the junction")
    if tuple(got) == fact.recorded:
        return
    rows = "; ".join(
        f"{'full' if group.window is None else f'window {group.window}'}, blocks of "
        f"{group.block_size}: {''.join('x' if there else '.' for there in found)!r}"
        for group, found in fact.kinds
    )
    where = f"{fact.where} ({rows}; x is there), at most {fact.num_tokens} tokens: "
    hit, junction = fact.recorded
    if got[0] != hit:
        raise WrongEntry(f"{where}a hit of {got[0]!r} tokens is not right{_why(got[0], fact)}",
                         str(hit))  # fmt: skip
    why = ""
    if not junction:
        why = ": no look-up found more than the hit"
    elif not got[1]:
        why = ": one look-up found more than the hit"
    raise WrongEntry(f"{where}the junction is not {got[1]!r}{why}", str(junction))


def _why(hit: object, fact: LookedUp) -> str:
    """Return the mistake that leads to this hit, where it is a known one."""
    once = fact.num_tokens
    for lookup in fact.lookups:
        once = lookup(once)
    alone = [lookup(fact.num_tokens) for lookup in fact.lookups]
    if hit == once != fact.recorded[0]:
        return ": a kind that was asked early has no hit of just this length; ask again"
    if hit == min(alone):
        return ": each kind was asked for all tokens, and must be asked for what others left"
    if hit == alone[0]:
        return ": that is what full attention has; the windows must have it, too"
    return ""


LAB = FunctionLab(
    "27",
    "Write the loop in which all kinds agree on a hit.",
    "A number that only falls, and a second one that remembers the most that was said. When has "
    "nothing changed in a whole round?",
    difficulty=3, minutes=15, stub=my_agree, check=check_agree,
    solution_module="minivllm.course.ch27.rules",
)  # fmt: skip
