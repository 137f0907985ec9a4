"""Your own mini engine: five pieces of a reader's, a milestone for each, and all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from minivllm.course.asking.answers import is_blank
from minivllm.course.ch05.lab_schedule import LAB as schedule
from minivllm.course.ch10.lab_online_softmax import LAB as online_softmax
from minivllm.course.ch10.lab_online_softmax import NUM_RUNS, run_kernel
from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.milestones import note_passed
from minivllm.course.grading.run import Fault
from minivllm.course.grading.scenarios import scenarios
from minivllm.course.grading.scoreboard import Engine, score
from minivllm.course.grading.verdicts import (
    Verdict,
    compare_recordings,
    first_fault,
    first_step,
    verdicts,
)
from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.viz.draw.wording import sentence
from minivllm.utils.validation import check

BASES = {"pool": KVCacheManager, "table": BlockTable, "cache": PrefixCache}
Pieces = Mapping[str, Any]  # by name: pool, table, plan, cache, kernel


def assemble(pool: type, table: type, cache: type) -> type[KVCacheManager]:
    """One manager of three classes of the reader's.

    Raises:
        ValueError: for a class that does not extend what it stands for.
    """
    for name, cls in (("pool", pool), ("table", table), ("cache", cache)):
        base = BASES[name]
        ok = isinstance(cls, type) and issubclass(cls, base)
        check(ok, name, cls, f"a class that extends {base.__name__}")
    return type("MiniEngine", (pool,), {"block_table_cls": table, "prefix_cache_cls": cache})


def _with(pieces: Pieces, *names: str) -> type[KVCacheManager]:
    """A manager with these pieces of the reader's; the others are minivllm's own."""
    return assemble(**{n: pieces[n] if n in names else base for n, base in BASES.items()})


# -- milestones ------------------------------------------------------------------------------------


def _judge_pool(pieces: Pieces) -> Verdict:
    """Points 1 and 3 of ``allocate_slots``: no block is shared, and nothing is cached."""
    manager_cls = _with(pieces, "pool")
    verdict = first_step(manager_cls)
    if verdict.outcome == "FAILED":
        return verdict
    try:
        num_equal = compare_recordings(manager_cls, with_cache=False)
    except Fault as fault:
        return Verdict("recordings", "FAILED", sentence(fault))
    text = f"{verdict.text}, and equal to {num_equal} recordings of vLLM without a cache"
    return Verdict("first step", "passed", text)


def _judge_table(pieces: Pieces) -> Verdict:
    """The table in minivllm's manager; then in the reader's, which needs point 2 for it."""
    wrong = _first_failed(_with(pieces, "table"))
    if wrong is None and _has_pool(pieces):
        served = [scenario for scenario in scenarios(0) if not scenario.caches]
        wrong = _of_pool(2, first_fault(_with(pieces, "pool", "table"), served))
    return wrong or Verdict("copies", "passed", "a shared block is copied before it is written to")


def _judge_cache(pieces: Pieces) -> Verdict:
    """The cache in minivllm's manager; then in the reader's, which needs point 4 for it."""
    wrong = _first_failed(_with(pieces, "cache"))
    if wrong is None and _has_pool(pieces):
        served = [scenario for scenario in scenarios(0) if not scenario.shares]
        wrong = _of_pool(4, first_fault(_with(pieces, "pool", "cache"), served))
    return wrong or Verdict("cache", "passed", "every block is found that vLLM finds, no other")


def _judge_function(lab: FunctionLab, function: Any) -> Verdict:
    if is_blank(function):
        raise NotImplementedError
    return lab.verdict(function)


def _judge_together(pieces: Pieces) -> Verdict:
    """The three classes in one engine; the plan and the kernel must be right, too."""
    functions = {name: MILESTONES[name](pieces) for name in ("3 schedule", "5 decode kernel")}
    for name, verdict in functions.items():
        if verdict.outcome != "passed":
            return Verdict("together", "not run", f"first mend {name!r}")
    right = "all recordings of vLLM, block ids included, and the oracle"
    return _first_failed(_with(pieces, *BASES)) or Verdict("together", "passed", right)


MILESTONES: dict[str, Callable[[Pieces], Verdict]] = {
    "1 pool": _judge_pool,
    "2 copy-on-write": _judge_table,
    "3 schedule": lambda pieces: _judge_function(schedule, pieces["plan"]),
    "4 prefix cache": _judge_cache,
    "5 decode kernel": lambda pieces: _judge_function(online_softmax, pieces["kernel"]),
}


_MILESTONE = dict(zip(("pool", "table", "plan", "cache", "kernel"), MILESTONES, strict=True))


def milestone(name: str, **pieces: Any) -> Verdict | None:
    """Verdict on one milestone, or on "together"; None if its piece is not begun.

    Args:
        name: a key of ``MILESTONES``, or "together".
        pieces: as for ``mini_engine``, all five.

    Raises:
        ValueError: for another name, or a class that does not extend what it stands for.
    """
    judges = {**MILESTONES, "together": _judge_together}
    check(name in judges, "name", name, f"one of {', '.join(judges)}")
    try:
        return judges[name](pieces)
    except NotImplementedError:
        return None


def _first_failed(manager_cls: type[KVCacheManager]) -> Verdict | None:
    return next((verdict for verdict in verdicts(manager_cls) if verdict.outcome == "FAILED"), None)


def _has_pool(pieces: Pieces) -> bool:
    """True if the reader's ``allocate_slots`` takes its first step."""
    try:
        return first_step(_with(pieces, "pool")).outcome == "passed"
    except NotImplementedError:
        return False


def _of_pool(point: int, failed: Verdict | None) -> Verdict | None:
    """A fault of the reader's manager with a piece that is right in minivllm's."""
    if failed is None:
        return None
    text = f"{failed.text} With minivllm's allocate_slots it is right: look at point {point}."
    return Verdict(failed.check, failed.outcome, text)


# -- all together ----------------------------------------------------------------------------------


def mini_engine(*, pool: type, table: type, cache: type, plan: Any, kernel: Any) -> None:
    """Print five milestones, each judged alone, what they are together, and a scoreboard.

    Together means: the three classes manage the blocks of one engine, through all recordings of
    vLLM's scheduler and beside the oracle. The scoreboard says how far an engine with your pieces
    goes with vLLM, and what that costs. Pieces that are not begun are minivllm's own in it.

    Args:
        pool: with ``allocate_slots`` (notebook 03), extends ``KVCacheManager``.
        table: with ``copy_on_write`` (04), extends ``BlockTable``.
        cache: with the longest hit (08), extends ``PrefixCache``.
        plan: ``my_schedule`` (05).
        kernel: ``my_online_softmax`` (10).
    """
    pieces = {"pool": pool, "table": table, "plan": plan, "cache": cache, "kernel": kernel}
    found: dict[str, Verdict | None] = {}
    for name in MILESTONES:
        try:
            found[name] = milestone(name, **pieces)
        except ValueError as error:
            print(f"not yet: {error}")
            return
    for name, verdict in found.items():
        print(f"{name:18} {_told(verdict)}")
    wrong = sum(_told(verdict) != "passed" for verdict in found.values())
    if wrong:
        print(f"together           not run: first mend {wrong} of {len(found)}")
    else:
        verdict = _judge_together(pieces)
        told = "passed: " if verdict.outcome == "passed" else ""
        print(f"{'together':18} {told}{verdict.text}")
        if told:
            note_passed("mini_engine")
    print(f"{'scoreboard':18} {scoreboard(pieces, found)}")


def _told(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not solved yet"
    return "passed" if verdict.outcome == "passed" else f"{verdict.check}: {verdict.text}"


def scoreboard(pieces: Pieces, found: Mapping[str, Verdict | None]) -> str:
    """Score in words: whose pieces have run, and in how many recordings they decide as vLLM.

    Args:
        pieces: all five.
        found: the verdict on each milestone; None if it is not begun.
    """
    begun = [name for name in pieces if found[_MILESTONE[name]] is not None]
    owners = {"yours": begun, "ours": [name for name in pieces if name not in begun]}
    whose = "; ".join(f"{', '.join(names)}: {owner}" for owner, names in owners.items() if names)
    deciding = [name for name in begun if name != "kernel"]

    def make_engine(*names: str) -> Engine:
        return _with(pieces, *names), pieces["plan"] if "plan" in names else None

    total = score(deciding, make_engine)
    text = f"{whose}. {total}"
    if deciding:
        counts = ", ".join(f"your {name} in {total.equal_with[name]}" for name in deciding)
        text += f"; equal are {counts}"
    if "plan" in begun:
        text += f"; your plan decided {total.planned_steps:,} steps"
    if "kernel" in begun:
        text += f"; your kernel is right in {_right_runs(pieces['kernel'])} runs"
    return text


def _right_runs(kernel: Any) -> str:
    runs = []
    with suppress(Fault):
        for _, fault in run_kernel(kernel, seed=0):
            runs.append(fault is None)
    return f"{sum(runs)} of {NUM_RUNS}"
