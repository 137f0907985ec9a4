"""Exercises of notebook 09: slots by hand, blocks under a window, what gathering costs."""

from __future__ import annotations

from random import Random

from minivllm.lab.exercises.answers import NotYet, number_list, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded
from minivllm.lab.exercises.function_exercise import FunctionExercise

# -- core: slots by hand -----------------------------------------------------------------------


@seeded(difficulty=1, minutes=5)
def slots(rng: Random) -> Exercise:
    """In which slots are these positions?"""
    block_size = rng.choice([4, 8, 16])
    table = rng.sample(range(1, 12), 3)
    last = rng.randrange(2 * block_size, 3 * block_size)
    return Exercise(
        _check_slots,
        "Which logical block is the position in, and how far from that block's beginning?",
        _solve_slots,
        "A sequence has this block table. In which slots are these positions? Answer with a list.",
        {
            "table": table,
            "block_size": block_size,
            "positions": [0, block_size - 1, block_size, last],
        },
    )


def _check_slots(answer, table, block_size, positions) -> str:
    answer = number_list(answer, "a slot for each position")
    if answer == positions:
        raise NotYet("these are the positions; the table says which block each of them is in.")
    if len(answer) != len(positions):
        raise NotYet(f"there are {len(positions)} positions, and you gave {len(answer)} slots.")
    right = _solve_slots(table, block_size, positions)
    for position, mine, theirs in zip(positions, answer, right, strict=True):
        if mine != theirs:
            raise NotYet(
                f"position {position} is not in slot {mine}.",
                f"position {position} is in block {theirs // block_size}, at offset "
                f"{theirs % block_size}: in slot {theirs}, not {mine}.",
            )
    apart = abs(right[2] - right[1])
    return (
        f"two neighbours, {positions[1]} and {positions[2]}, are {apart} slots apart, and "
        "attention does not mind."
    )


def _solve_slots(table, block_size, positions) -> list[int]:
    return [table[p // block_size] * block_size + p % block_size for p in positions]


# -- stretch: blocks under a window ------------------------------------------------------------


@seeded(difficulty=3, minutes=15)
def blocks_read(rng: Random) -> Exercise:
    """Which blocks does a decode read under a sliding window?"""
    calls = []
    for _ in range(100):
        block_size, seq_len = rng.choice([1, 3, 4]), rng.randint(1, 30)
        table = rng.sample(range(1, 99), -(-seq_len // block_size) + rng.randint(0, 1))
        calls.append((table, block_size, seq_len, rng.randint(1, 12)))
    return FunctionExercise(
        "With a sliding window of w, a token sees itself and the w - 1 tokens before it. Write "
        "blocks_read(table, block_size, seq_len, window): the physical blocks that a decode "
        "reads, in the order of its positions.",
        "Find the first and the last position that are seen, and the logical blocks they are in.",
        _solve_blocks_read,
        calls=calls,
        learnt="blocks before the window are never read again, so they can be freed.",
    )


def _solve_blocks_read():
    def blocks_read(table, block_size, seq_len, window):
        first = max(0, seq_len - window)  # the token sees itself, too
        return table[first // block_size : (seq_len - 1) // block_size + 1]

    return blocks_read


# -- design: what gathering costs --------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def batches(rng: Random) -> Exercise:
    """How many chats can be served in time, in place and with gathering?"""
    return Exercise(
        _check_batches,
        "How many GB can be moved in that time, and how many of them are the weights?",
        _solve_batches,
        "A decode step may take so many milliseconds on a GPU with this bandwidth. It moves the "
        "weights once, and K and V of each chat: once if they are read in place, three times if "
        "they are gathered first (read, written, read again). How many chats fit into a step? "
        "Answer (in place, gathered).",
        {
            "gb_per_second": rng.choice([2000, 3350, 4800]),
            "weights_gb": rng.randint(8, 24),
            "bytes_per_token": 131_072,
            "chat_tokens": 1024 * rng.randint(2, 8),
            "milliseconds": rng.choice([20, 30, 40]),
        },
    )


def _check_batches(answer, **given) -> str:
    in_place, gathered = whole_numbers(answer, ["in place", "gathered"])
    right = _solve_batches(**given)
    if (in_place, gathered) == right:
        return "reading in place serves three times as many people."
    if (in_place, gathered) == right[::-1]:
        raise NotYet("the other way round: gathering moves more.")
    pairs = zip(("in place", "gathered"), (in_place, gathered), right, (1, 3), strict=True)
    name, got, most, times = next(pair for pair in pairs if pair[1] != pair[2])
    chats_gb = got * times * given["bytes_per_token"] * given["chat_tokens"] / 1e9
    took = (given["weights_gb"] + chats_gb) / given["gb_per_second"] * 1e3
    if got > most:
        raise NotYet(f"{name}, {got} chats take {took:.1f} ms.")
    raise NotYet(f"{name}, {got} chats take {took:.1f} ms; more would fit.")


def _solve_batches(
    gb_per_second, weights_gb, bytes_per_token, chat_tokens, milliseconds
) -> tuple[int, int]:
    for_the_cache = milliseconds / 1e3 * gb_per_second - weights_gb  # GB beside the weights
    chat = bytes_per_token * chat_tokens / 1e9
    return int(for_the_cache / chat), int(for_the_cache / (3 * chat))
