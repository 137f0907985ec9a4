"""Your own mini engine: every piece that a reader wrote, graded alone and then all together."""

from __future__ import annotations

from typing import Any

from minivllm.course.ch05.lab_schedule import LAB as schedule
from minivllm.course.ch10.lab_online_softmax import LAB as online_softmax
from minivllm.course.grading.milestones import note_passed
from minivllm.course.grading.scoreboard import score
from minivllm.course.grading.verdicts import verdicts
from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.utils.validation import check

BASES = {"pool": KVCacheManager, "table": BlockTable, "cache": PrefixCache}


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


def mini_engine(*, pool: type, table: type, cache: type, plan: Any, kernel: Any) -> None:
    """Print five milestones, each graded alone, what they are together, and a scoreboard.

    Together means: the three classes manage the blocks of one engine, through all recordings of
    vLLM's scheduler and beside the oracle. The plan and the kernel are functions; they are held to
    the same recordings, and to softmax. The scoreboard says how far the three classes go with
    vLLM, even if they are not right yet, and what that costs.

    Args:
        pool: with ``allocate_slots`` (notebook 03), extends ``KVCacheManager``.
        table: with ``copy_on_write`` (04), extends ``BlockTable``.
        cache: with the longest hit (08), extends ``PrefixCache``.
        plan: ``my_schedule`` (05).
        kernel: ``my_online_softmax`` (10).
    """
    try:
        together = assemble(pool, table, cache)
        alone = {
            "1 pool": assemble(pool, BlockTable, PrefixCache),
            "2 copy-on-write": assemble(KVCacheManager, table, PrefixCache),
            "4 prefix cache": assemble(KVCacheManager, BlockTable, cache),
        }
    except ValueError as error:
        print(f"not yet: {error}")
        return
    found = {name: _manager(cls) for name, cls in alone.items()}
    found["3 schedule"] = _function(schedule, plan)
    found["5 decode kernel"] = _function(online_softmax, kernel)
    for name in sorted(found):
        print(f"{name:18} {found[name] or 'passed'}")
    wrong = sum(text is not None for text in found.values())
    if wrong:
        print(f"together           not run: first mend {wrong} of {len(found)}")
    else:
        text = _manager(together)
        right = "passed: all recordings of vLLM, block ids included, and the oracle"
        print(f"{'together':18} {text or right}")
        if text is None:
            note_passed("mini_engine")
    print(f"{'scoreboard':18} {score(together)}")


def _manager(cls: type[KVCacheManager]) -> str | None:
    """First fault of a manager, by all checks of the labs; None if there is none."""
    try:
        failed = [verdict for verdict in verdicts(cls) if verdict.outcome == "FAILED"]
    except NotImplementedError:
        return "not solved yet"
    return f"{failed[0].check}: {failed[0].text}" if failed else None


def _function(lab, function: Any) -> str | None:
    try:
        verdict = lab.verdict(function)
    except NotImplementedError:
        return "not solved yet"
    return None if verdict.outcome == "passed" else verdict.text
