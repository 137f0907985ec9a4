"""Exercises of notebook 03: from a position to its slot, tables as they grow, a block size."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import (
    NotYet,
    compare,
    is_blank,
    number_list,
    whole_number,
    whole_numbers,
)
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.requests import make_request
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit
from minivllm.lab.sim import simulate
from minivllm.lab.sim.workloads import SimRequest
from minivllm.request import Sequence
from minivllm.utils.math_utils import cdiv

# -- core: translation of addresses ------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def translation(rng: Random) -> Exercise:
    """Which block, which offset, which slot?"""
    block_size = rng.choice([4, 8, 16])
    block_table = rng.sample(range(1, 40), rng.randint(3, 5))
    num_tokens = len(block_table) * block_size - rng.randrange(block_size)
    return Exercise(
        _check_translation,
        "divmod(position, block_size) says which entry of the table, and where in the block.",
        _solve_translation,
        "A sequence has this block table. In which block is each of these positions, at which "
        "offset, and in which slot? Answer with a list of triples (block, offset, slot).",
        {
            "block_table": block_table,
            "block_size": block_size,
            "positions": sorted(rng.sample(range(num_tokens), 3)),
        },
    )


def _solve_translation(block_table, block_size, positions):
    answer = []
    for position in positions:
        logical, offset = divmod(position, block_size)
        block = block_table[logical]
        answer.append((block, offset, block * block_size + offset))
    return answer


def _check_translation(answer, block_table, block_size, positions) -> str:
    pool = BlockPool(max(block_table) + 1)
    table = BlockTable(block_size)
    table.blocks = [pool.blocks[block_id] for block_id in block_table]
    if not isinstance(answer, (list, tuple)) or len(answer) != len(positions):
        raise NotYet(f"give {len(positions)} triples (block, offset, slot), one per position.")
    for position, triple in zip(positions, answer, strict=True):
        block, offset, slot = whole_numbers(triple, ("block", "offset", "slot"))
        right = table.slot(position)
        logical, right_offset = divmod(position, block_size)
        right_block = right // block_size
        mistakes = {
            f"that is logical block {logical}; look it up in the table.": logical,
            "that is its offset; which entry of the table is it in?": right_offset,
            "you took the entry before; entries count from 0.": block_table[logical - 1],
            "you took the next entry; entries count from 0.": (
                block_table[(logical + 1) % len(block_table)]
            ),
            "the entry is position // block_size; you took position % block_size.": (
                block_table[right_offset % len(block_table)]
            ),
        }
        compare(
            block,
            right_block,
            mistakes,
            f"position {position} is not in block {block}.",
            f"position {position} is in entry {position} // {block_size} = {logical} of the "
            f"table, which is block {right_block}, not {block}.",
            at=f"position {position} is not in block {block}: ",
        )
        where = f"block {block} is right for position {position}, but its offset is"
        compare(
            offset,
            right_offset,
            {"offsets count from 0.": right_offset + 1, "that is the entry.": logical},
            f"{where} not {offset}.",
            f"{where} {position} mod {block_size} = {right_offset}, not {offset}.",
            at=f"{where} not {offset}: ",
        )
        where = f"block {block} and offset {offset} are right for position {position}; its slot is"
        mistakes = {
            "that is the position; slots follow the physical blocks.": position,
            "blocks count from 0, so block 1 begins at slot block_size.": right - block_size,
            "the offset is missing.": block * block_size,
            "a block has block_size slots: multiply.": block + offset,
            "slots count from 0.": right + 1,
        }
        compare(
            slot,
            right,
            mistakes,
            f"{where} not {slot}.",
            f"{where} {block} * {block_size} + {offset} = {right}, not {slot}.",
            at=f"{where} not {slot}: ",
        )
    return "this is all that paging adds to an attention kernel: one look into a table."


# -- stretch: tables as they grow --------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def tables(rng: Random) -> Exercise:
    """Block tables after some sequences leave and others come."""
    block_size = rng.choice([2, 4])
    alive = []
    events = []
    for kind in ["arrive"] * 3 + ["leave", rng.choice(["grow", "leave"]), "arrive", "grow"]:
        if kind == "arrive":
            alive.append("ABCD"[len([e for e in events if e[0] == "arrive"])])
            events.append((kind, alive[-1], rng.randint(1, 3 * block_size)))
        elif kind == "grow":
            events.append((kind, rng.choice(alive), rng.randint(1, block_size)))
        else:
            events.append((kind, alive.pop(rng.randrange(len(alive))), 0))
    return Exercise(
        _check_tables,
        "Free blocks wait in a queue, 1, 2, 3, ... at first. A sequence that leaves puts its "
        "blocks back at the front, so that its last block is the next one taken.",
        _solve_tables,
        "These events (kind, name, tokens) happen one after the other: a sequence arrives with "
        "this number of tokens, grows by it, or leaves. Nothing is cached. What is the block "
        "table of each one that is still there at the end? Answer with a dict of lists of block "
        "ids.",
        {"block_size": block_size, "events": events},
    )


def _solve_tables(block_size, events):
    free, held, num_tokens = list(range(1, 100)), {}, {}
    for kind, name, count in events:
        if kind == "leave":
            free = held.pop(name)[::-1] + free  # the last block is the next one taken
            continue
        num_tokens[name] = num_tokens.get(name, 0) + count
        table = held.setdefault(name, [])
        while len(table) * block_size < num_tokens[name]:
            table.append(free.pop(0))
    return held


RETURNS = {
    "a sequence that leaves gives its blocks back to the front of the queue: they are taken "
    "next.": lambda table, free: free + table,
    "of a sequence that left, the last block is taken first.": lambda table, free: table + free,
}


def _replay(block_size: int, events, give_back) -> dict[str, list[int]]:
    """Tables where ``give_back(table, free)`` is the free queue after a sequence has left."""
    free = list(range(1, 100))
    held = {}
    num_tokens = {}
    for kind, name, count in events:
        if kind == "leave":
            free = give_back(held.pop(name), free)
            continue
        num_tokens[name] = num_tokens.get(name, 0) + count
        num_new = cdiv(num_tokens[name], block_size) - len(held.setdefault(name, []))
        held[name] += free[:num_new]
        del free[:num_new]
    return held


def _play(block_size: int, events) -> tuple[KVCacheManager, dict[tuple[str, int], list[int]]]:
    """The events on a real manager; for each (name, entry) the free queue when it was filled."""
    manager = KVCacheManager(100, block_size)
    seqs = {}
    queues = {}
    for kind, name, count in events:
        if kind == "leave":
            manager.free(seqs.pop(name))
            continue
        if kind == "arrive":
            seqs[name] = Sequence(make_request(name, count, 1), 0)
            manager.allocate_new_computed_blocks(seqs[name], CacheHit())
        queue = [block.block_id for block in manager.block_pool.free_block_queue]
        first = len(manager.get_block_ids(name))
        manager.allocate_slots(seqs[name], count, [])
        seqs[name].num_computed_tokens += count
        for entry in range(first, len(manager.get_block_ids(name))):
            queues[name, entry] = queue[entry - first :]
    manager.check_integrity()
    return manager, queues


def _check_tables(answer, block_size, events) -> str:
    manager, queues = _play(block_size, events)
    right = {name: table.block_ids for name, table in manager.block_tables.items()}
    if not isinstance(answer, dict) or is_blank(answer):
        raise NotYet("give a dict, for example {'A': [1, 2]}.")
    for name in answer:
        if name not in right:
            raise NotYet(f"{name!r} has no table at the end; {', '.join(right)} have one.")
    for name, table in right.items():
        if name not in answer:
            raise NotYet(f"{name} is still there at the end, and its table is missing.")
        for explanation, give_back in RETURNS.items():
            if answer[name] == _replay(block_size, events, give_back)[name] != table:
                raise NotYet(f"{name}'s table: {explanation}")
        got = number_list(answer.get(name, []), f"the block table of {name}")
        for entry, block_id in enumerate(table):
            if entry < len(got) and got[entry] != block_id:
                queue = ", ".join(map(str, queues[name, entry][:3]))
                raise NotYet(
                    f"entry {entry} of {name}'s table is not block {got[entry]}: which blocks were "
                    "at the head of the free queue when it was needed?",
                    f"entry {entry} of {name}'s table is block {block_id}, not {got[entry]}: when "
                    f"it was needed, the free queue began with {queue}.",
                )
        if len(got) != len(table):
            num_tokens = sum(tokens for _, one, tokens in events if one == name)
            growth = [tokens for kind, one, tokens in events if one == name and kind == "grow"]
            each = [cdiv(tokens, block_size) for _, one, tokens in events if one == name and tokens]
            why = "count its tokens."
            if len(got) == sum(each):
                why = "when it grows, the last block may have room."
            elif growth and len(got) == cdiv(num_tokens - sum(growth), block_size):
                why = "it has grown."
            elif len(got) == num_tokens // block_size:
                why = "a block that is partly filled is held, too: round up."
            raise NotYet(
                f"{name} does not hold {len(got)} blocks: {why}",
                f"{name} has {num_tokens} tokens, so it holds {len(table)} blocks of {block_size}, "
                f"not {len(got)}.",
            )
    return "a block that was just used is used again first: nothing is lost by it."


# -- design: a block size ----------------------------------------------------------------------

SIZES = (1, 2, 4, 8, 16, 32, 64)


@seeded(difficulty=2, minutes=5)
def block_size(rng: Random) -> Exercise:
    """The largest blocks that do not waste too much."""
    given = {
        "lengths": [(rng.randint(5, 60), rng.randint(8, 32)) for _ in range(6)],
        "least_share": rng.choice([0.85, 0.9, 0.95]),
    }
    return Exercise(
        _check_block_size,
        "On average the last block of a sequence is half empty. How long is a sequence?",
        _solve_block_size,
        "Small blocks waste little, large ones make short tables. These requests, (prompt, output) "
        "tokens, are served together. What is the largest block size among 1, 2, 4, ... 64 with "
        "which at least this share of the slots that are held hold tokens, in the mean over time?",
        given,
    )


def share_of_tokens(lengths: list[tuple[int, int]], block_size: int) -> float:
    """Share of the held slots that hold tokens, the mean over a simulated run."""
    workload = [SimRequest(0.0, [0] * prompt, output) for prompt, output in lengths]
    return simulate(
        workload, block_size=block_size, num_blocks=4096 // block_size, enable_prefix_caching=False
    ).tokens_in_held


def _solve_block_size(lengths, least_share):
    return max(size for size in SIZES if share_of_tokens(lengths, size) >= least_share)


def _check_block_size(answer, lengths, least_share) -> str:
    answer = whole_number(answer)
    if answer not in SIZES:
        raise NotYet(f"choose one of {', '.join(map(str, SIZES))}.")
    share = share_of_tokens(lengths, answer)
    if share < least_share:
        raise NotYet(
            f"blocks of {answer} are too large: {share:.1%} of the held slots hold tokens, and "
            f"{least_share:.0%} are asked for. The last block of each is half empty on average."
        )
    if answer < SIZES[-1]:
        larger = share_of_tokens(lengths, 2 * answer)
        if larger >= least_share:
            raise NotYet(
                f"{share:.1%} hold tokens, and with blocks of {2 * answer} still {larger:.1%}: the "
                "largest size is asked for."
            )
    return f"{share:.1%} of the held slots hold tokens; vLLM's 16 is such a choice."
