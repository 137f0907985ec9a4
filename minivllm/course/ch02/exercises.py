"""Exercises of notebook 02: what the slots of a slab do, holes between slabs, a reservation."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, numbers_by_name, whole_number
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.asking.requests import make_request
from minivllm.kv.prefix_cache import CacheHit
from minivllm.lab.contiguous.manager import ALLOCATORS, ContiguousKVCacheManager
from minivllm.lab.contiguous.slab_pool import next_power_of_2
from minivllm.lab.translation import translated

# -- core: what every slot is doing ------------------------------------------------------------

RULES = {
    "pow2": "the prompt, and the output rounded up to a power of two",
    "max": "max_model_len",
}


@seeded(difficulty=2, minutes=8)
def waste(rng: Random) -> Exercise:
    """Tokens, reserved, never used, free: the slots of a contiguous pool."""
    rule = rng.choice(["pow2", "max"])
    running = {}
    for name in "ABC":
        prompt = rng.randint(4, 20)
        output = rng.randint(3, 12)
        running[name] = (prompt, output, prompt + rng.randrange(output))
    return Exercise(
        _check_waste,
        "The last token of an output is never an input, so it has no K and V. Take one request at "
        "a time: what it was given, what it will ever fill, what it has filled.",
        _solve_waste,
        f"A server gives each request one slab, '{rule}': room for {RULES[rule]}. Each running "
        "request is (prompt tokens, output tokens when it will be done, tokens with K and V now). "
        "How many slots hold tokens, are reserved (will be filled), are internal waste (never "
        "will), are free? Answer with a dict of these four words.",
        {
            "num_slots": rng.randrange(128, 161, 8),
            "max_model_len": 40,
            "reservation": rule,
            "running": running,
        },
    )


def _solve_waste(num_slots, max_model_len, reservation, running):
    tokens = reserved = internal = 0
    for prompt, output, now in running.values():
        rounded = next_power_of_2(output) if reservation == "pow2" else output
        slab = max_model_len if reservation == "max" else prompt + rounded
        slab = min(slab, max_model_len)
        at_end = prompt + output - 1
        tokens += now
        reserved += at_end - now
        internal += slab - at_end
    free = num_slots - tokens - reserved - internal
    return {"tokens": tokens, "reserved": reserved, "internal": internal, "free": free}


def _check_waste(answer, num_slots, max_model_len, reservation, running) -> str:
    manager = ContiguousKVCacheManager(num_slots, max_model_len, reservation, "first_fit")
    for name, (prompt, output, now) in running.items():
        seq = make_request(name, prompt, output).seqs[0]
        manager.allocate_new_computed_blocks(seq, CacheHit())
        manager.allocate_slots(seq, now, [])
    right = manager.slot_usage()._asdict()
    names = ("tokens", "reserved", "internal", "free")
    got = numbers_by_name(answer, names, "slots")
    parts = {
        "tokens": {n: s.num_tokens for n, s in manager.block_tables.items()},
        "reserved": {
            n: s.num_tokens_at_end - s.num_tokens for n, s in manager.block_tables.items()
        },
        "internal": {
            n: s.num_reserved - s.num_tokens_at_end for n, s in manager.block_tables.items()
        },
    }
    for name in names:
        if name not in got:
            raise NotYet(f"{name!r} is missing.")
        off = got[name] - right[name]
        if name in ("reserved", "internal") and abs(off) == len(running):
            raise NotYet(
                f"{name}: {got[name]} is one per request too {'many' if off > 0 else 'few'}. The "
                "last token of an output is sampled and never computed: it takes no slot."
            )
        if off and name == "free":
            raise NotYet(
                f"free: {got[name]} is not the number of slots outside of the slabs.",
                f"free: of {num_slots} slots, {num_slots - right[name]} are in slabs, so "
                f"{right[name]} are free, not {got[name]}.",
            )
        prompts = sum(prompt for prompt, _, _ in running.values())
        mistakes = {
            "tokens": {"an answer's tokens have K and V, too, not only the prompt's.": prompts},
            "reserved": {
                "what is filled already is not reserved any more.": right["tokens"]
                + right["reserved"],
                "slots that will never be filled are internal waste.": right["reserved"]
                + right["internal"],
                "these will never be filled: that is internal waste.": right["internal"],
            },
            "internal": {
                "what will be filled later is reserved, not waste.": right["reserved"]
                + right["internal"],
                "these will be filled: they are reserved.": right["reserved"],
            },
        }
        for explanation, mistaken in mistakes.get(name, {}).items():
            if off and got[name] == mistaken:
                raise NotYet(translated("{}: ").format(name) + explanation)
        if off:
            each = ", ".join(f"{n} {count}" for n, count in parts[name].items())
            raise NotYet(
                f"{name}: {got[name]} is not the sum over the slabs.",
                f"{name}: you have {got[name]}; the slabs have {each}.",
            )
    return f"{right['tokens'] / num_slots:.0%} of the memory hold tokens; with blocks it is most."


# -- stretch: holes ----------------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def holes(rng: Random) -> Exercise:
    """Free slots that no request can use, because they are not in one piece."""
    return FunctionExercise(
        "A pool of num_slots slots hands out slabs from the left; slabs has their names and sizes "
        "in order. Then those in left leave. Write holes(num_slots, slabs, left): how many slots "
        "are free, and how many has the largest request that can be served now? It returns a pair "
        "(free, largest).",
        "Draw the pool as a line. Free pieces that touch are one piece.",
        _solve_holes,
        calls=[_pool_with_holes(rng) for _ in range(60)],
        learnt="a larger request must wait although enough slots are free: external waste.",
        mistakes={
            "free pieces that touch are one piece.": lambda n, slabs, left: (
                _free(n, slabs, left),
                max([n - sum(slabs.values()), *(slabs[name] for name in left)]),
            ),
            "what follows the last slab is free, too.": lambda n, slabs, left: _solve_holes()(
                sum(slabs.values()), slabs, left
            ),
            "the free slots are not in one piece.": lambda n, slabs, left: (
                (_free(n, slabs, left),) * 2
            ),
            "that is the sum of what is held; the others are free.": lambda n, slabs, left: (
                n - _free(n, slabs, left),
                _solve_holes()(n, slabs, left)[1],
            ),
        },
    )


def _pool_with_holes(rng: Random) -> tuple:
    slabs = {name: rng.randint(6, 20) for name in "ABCDEF"}
    left = sorted(rng.choice(["ABD", "ADE", "BCE", "BEF", "ACD", "CDF", "BDE", "ACF"]))
    return sum(slabs.values()) + rng.randint(0, 12), slabs, left


def _free(num_slots: int, slabs: dict[str, int], left: list[str]) -> int:
    return num_slots - sum(size for name, size in slabs.items() if name not in left)


def _solve_holes():
    def holes(num_slots, slabs, left):
        pieces, piece = [], 0
        for name, size in slabs.items():
            if name in left:
                piece += size
            else:
                pieces.append(piece)
                piece = 0
        pieces.append(piece + num_slots - sum(slabs.values()))  # what follows the last slab
        return sum(pieces), max(pieces)

    return holes


# -- design: a reservation ---------------------------------------------------------------------

FORBIDDEN = "'exact' cannot be chosen: how long an answer will be is not known before."


@seeded(difficulty=3, minutes=10)
def reservation(rng: Random) -> Exercise:
    """Largest number of requests at once that slabs allow."""
    while True:
        lengths = [(rng.randint(5, 90), rng.randint(5, 60)) for _ in range(16)]
        longest = max(prompt + output for prompt, output in lengths)
        counts = {
            (rule, allocator): _num_admitted(512, lengths, rule, allocator, longest)
            for rule in ("max", "pow2")
            for allocator in ALLOCATORS
        }
        if len(set(counts.values())) > 2:
            break
    return Exercise(
        _check_reservation,
        "How long is the longest request? And what does the buddy allocator do to a slab of 129?",
        _solve_reservation,
        "A pool has 512 slots. These requests, (prompt, output) tokens, arrive together and are "
        "admitted in this order until one does not fit. Choose reservation ('max' or 'pow2'), "
        "allocator ('buddy' or 'first_fit') and max_model_len, such that every request could run "
        "and at least this many are admitted at once. Answer with these three in a tuple.",
        {"lengths": lengths, "at_least": max(counts.values())},
    )


def _num_admitted(num_slots, lengths, rule, allocator, max_model_len) -> int:
    manager = ContiguousKVCacheManager(num_slots, max_model_len, rule, allocator)
    for index, (prompt, output) in enumerate(lengths):
        seq = make_request(str(index), prompt, output).seqs[0]
        if manager.get_num_blocks_to_allocate(seq, CacheHit()) > manager.block_pool.num_free_blocks:
            return index
        manager.allocate_new_computed_blocks(seq, CacheHit())
    return len(lengths)


def _solve_reservation(lengths, at_least):
    longest = max(prompt + output for prompt, output in lengths)
    choices = [(r, a, longest) for r in ("max", "pow2") for a in ("buddy", "first_fit")]
    return max(choices, key=lambda choice: _num_admitted(512, lengths, *choice))


def _check_reservation(answer, lengths, at_least) -> str:
    if not isinstance(answer, (list, tuple)) or len(answer) != 3:
        raise NotYet("give a tuple like ('max', 'buddy', 256).")
    rule, allocator, max_model_len = answer
    if rule == "exact":
        raise NotYet(FORBIDDEN)
    if rule not in ("max", "pow2") or allocator not in tuple(ALLOCATORS):
        raise NotYet("reservation is 'max' or 'pow2', allocator is 'buddy' or 'first_fit'.")
    longest = max(prompt + output for prompt, output in lengths)
    max_model_len = whole_number(max_model_len)
    if max_model_len < longest:
        raise NotYet(f"max_model_len={max_model_len} refuses the request of {longest} tokens.")
    try:
        count = _num_admitted(512, lengths, rule, allocator, max_model_len)
    except ValueError as error:
        raise NotYet(f"{error}") from error
    if count < at_least:
        loose = " max_model_len is larger than any request needs." * (max_model_len > longest)
        rounded = " The buddy allocator rounds every slab up to a power of two."
        why = loose or (rounded if allocator == "buddy" else " 'max' reserves the longest for all.")
        raise NotYet(f"{count} are admitted at once, {at_least} are asked for.{why}")
    left = "" if count == len(lengths) else "; the next does not fit, and none may overtake it"
    return f"{count} at once{left}."
