"""Exercises of notebook 04: reference counts of samples, room for many samples."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random

from minivllm.course.asking.answers import NotYet, compare, numbers_by_name, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.trace.records import Preempted, SwappedOut
from minivllm.utils.math_utils import cdiv

# -- core: reference counts after some steps ---------------------------------------------------


@seeded(difficulty=2, minutes=5)
def ref_counts(rng: Random) -> Exercise:
    """Reference counts after some steps of sharing."""
    return Exercise(
        _check_ref_counts,
        "The first step computes each prompt once, and then its samples share the blocks. Every "
        "further step writes one token of each sample, into a block of its own.",
        _solve_ref_counts,
        "Two requests, (prompt tokens, samples), arrive together in an empty, large pool that "
        "hands out block 1 first; nothing is cached. What are the reference counts after "
        "num_steps steps? Answer with a dict {block: count} of all blocks that are in a table.",
        {
            "requests": {
                "A": (rng.randint(5, 15), rng.randint(2, 4)),
                "B": (rng.randint(2, 9), rng.randint(1, 2)),
            },
            "block_size": rng.choice([3, 4]),
            "num_steps": rng.randint(2, 5),
        },
    )


def _solve_ref_counts(requests, block_size, num_steps):
    ids, groups = count(1), []
    for num_prompt, n in requests.values():  # the first step
        blocks = [next(ids) for _ in range(-(-num_prompt // block_size))]
        groups.append((num_prompt, [list(blocks) for _ in range(n)]))
    for step in range(num_steps - 1):
        for num_prompt, tables in groups:
            for table in tables:
                if (num_prompt + step) % block_size == 0:
                    table.append(next(ids))
                elif sum(table[-1] in other for other in tables) > 1:
                    table[-1] = next(ids)  # copy on write
    return dict(Counter(block for _, tables in groups for table in tables for block in table))


def _check_ref_counts(answer, requests, block_size, num_steps) -> str:
    workload = [
        make_request(name, prompt, num_steps + 1, n=n) for name, (prompt, n) in requests.items()
    ]
    state = dry_run(workload, num_blocks=100, block_size=block_size).state_at(num_steps - 1)
    right = state.ref_counts
    got = numbers_by_name(answer, range(1, 100), "reference counts by block")
    for block in sorted({*right, *got}):
        if block not in right:
            if got[block]:
                raise NotYet(f"no table has block {block}; {len(right)} blocks are held.")
            continue
        holders = [seq for seq in state.sequences.values() if block in seq.block_ids]
        names = ", ".join(seq.seq_id for seq in holders)
        first = holders[0].block_ids.index(block) * block_size
        where = f"positions {first} to {first + block_size - 1}"
        if block not in got:
            raise NotYet(f"block {block} is missing: it has {where} of {names}.")
        if got[block] != right[block]:
            of = holders[0].seq_id.split("/")[0]
            num_prompt, n = requests[of]
            if first + block_size <= num_prompt:
                mistakes = {
                    "the samples of a request share the full blocks of its prompt.": 1,
                    "the other request has tables of its own.": sum(
                        m for _, m in requests.values()
                    ),
                    f"a full block is never written, so all {n} samples keep it.": n - 1,
                    f"only tables count, and there are {n}.": n + 1,
                }
            elif first < num_prompt:
                mistakes = {
                    "all samples but the last to write there took a copy.": n,
                    "the last sample to write there finds itself alone and writes in place.": 0,
                }
            else:
                mistakes = {"these are a sample's own tokens, so the block is its own.": n}
            compare(
                got[block],
                right[block],
                mistakes,
                f"block {block} has {where}; in how many tables is it? Not {got[block]}.",
                f"block {block} has {where}, and is in the tables of {names}: its count is "
                f"{right[block]}, not {got[block]}.",
                at=f"block {block} has {where}, and its count is not {got[block]}: ",
            )
    return f"{len(right)} blocks; without sharing it would be {sum(right.values())}."


# -- design: room for many samples -------------------------------------------------------------


@seeded(difficulty=4, minutes=10)
def samples(rng: Random) -> Exercise:
    """Largest number of samples of one prompt that a memory holds."""
    return Exercise(
        _check_samples,
        "What do samples share, and what has each for itself? A block size that divides the prompt "
        "need not be the best one; and the tables must stay short.",
        _solve_samples,
        "A memory has this many slots. How many samples of one prompt, each with its own output, "
        "can run side by side to the end, if you choose the block size? But no block table may "
        "have more than max_entries entries. Answer with a pair (block size, n), n as large as "
        "can be.",
        {
            "num_slots": rng.randrange(320, 513, 16),
            "num_prompt": rng.randint(40, 90),
            "num_output": rng.randint(15, 40),
            "max_entries": rng.randint(10, 24),
        },
    )


def _solve_samples(num_slots, num_prompt, num_output, max_entries):
    def n_for(block_size):
        in_the_end = -(-(num_prompt + num_output - 1) // block_size)
        if in_the_end > max_entries:
            return 0
        shared = num_prompt // block_size
        return (num_slots // block_size - shared) // (in_the_end - shared)

    block_size = max(range(1, 65), key=n_for)
    return block_size, n_for(block_size)


def _run_samples(block_size, n, num_slots, num_prompt, num_output) -> str | None:
    """Return what goes wrong, or None."""
    try:
        trace = dry_run(
            [make_request("A", num_prompt, num_output, n=n)],
            num_blocks=num_slots // block_size + 1,
            block_size=block_size,
            enable_prefix_caching=True,
        )
    except ValueError as error:
        return str(error)
    if any(trace.of(Preempted, SwappedOut)):
        return "the request is preempted on the way."
    return None


def _check_samples(answer, num_slots, num_prompt, num_output, max_entries) -> str:
    block_size, n = whole_numbers(answer, ("block size", "n"))
    if not 1 <= block_size <= 64 or not 1 <= n <= 200:
        raise NotYet("the block size is 1 to 64, and n is 1 to 200.")
    entries = -(-(num_prompt + num_output - 1) // block_size)
    if entries > max_entries:
        raise NotYet(f"with blocks of {block_size} a table grows to {entries} entries.")
    request = {"num_slots": num_slots, "num_prompt": num_prompt, "num_output": num_output}
    wrong = _run_samples(block_size, n, **request)
    shared = num_prompt // block_size
    own = entries - num_prompt // block_size
    if wrong and n == (num_slots // block_size - cdiv(num_prompt, block_size)) // (
        entries - cdiv(num_prompt, block_size)
    ):
        raise NotYet(
            f"with blocks of {block_size} the prompt ends inside a block, and each sample needs a "
            f"copy of it: {shared} blocks are shared, {own} are each sample's own."
        )
    if wrong:
        raise NotYet(f"with blocks of {block_size}, {n} samples are too many: {wrong}")
    for other in range(1, 65):
        fits = -(-(num_prompt + num_output - 1) // other) <= max_entries
        if fits and _run_samples(other, n + 1, **request) is None:
            what = f"blocks of {block_size}" if other == block_size else "another block size"
            alone = num_slots // block_size // entries
            why = " Full blocks of the prompt are shared." if n <= alone else ""
            raise NotYet(f"{n} samples run, but {what} would hold {n + 1}.{why}")
    alone = num_slots // (entries * block_size)
    return f"{n} samples; without sharing the prompt it would be {alone}."
