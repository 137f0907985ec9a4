"""Exercises of notebook 09: slots by hand, blocks under a window, what gathering costs."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

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
            logical, offset = divmod(position, block_size)
            mistakes = {
                "that is the position; the table says which block it is in.": position,
                "the block in the table counts, not the number of the entry.": position,
                "blocks count from 0: block 1 begins at slot block_size.": theirs - block_size,
                "the offset is missing.": theirs - offset,
                "that is the block; a block has block_size slots.": theirs // block_size,
                "slots count from 0.": theirs + 1,
                "you took the next entry of the table.": ([*table, None][logical + 1] or 0)
                * block_size
                + offset,
                "you took the entry before.": table[logical - 1] * block_size + offset,
                "a block has block_size slots: multiply.": theirs // block_size + offset,
            }
            compare(
                mine,
                theirs,
                mistakes,
                f"position {position} is not in slot {mine}: find its block and its offset.",
                f"position {position} is in block {theirs // block_size}, at offset "
                f"{theirs % block_size}: in slot {theirs}, not {mine}.",
                at=f"position {position} is not in slot {mine}: ",
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
        block_size = rng.choice([1, 3, 4])
        seq_len = rng.randint(1, 30)
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
        mistakes={
            "with the window the first positions are not read.": lambda table, size, n, w: table[
                : cdiv(n, size)
            ],
            "the window counts tokens, not blocks.": lambda table, size, n, w: table[
                max(0, cdiv(n, size) - w) : cdiv(n, size)
            ],
            "the token sees itself, too: w - 1 tokens before it.": lambda table, size, n, w: table[
                max(0, n - 1 - w) // size : cdiv(n, size)
            ],
            "entries after the last token are not read.": lambda table, size, n, w: table[
                max(0, n - w) // size :
            ],
            "the last block is read, too, if it is partly filled.": lambda table, size, n, w: table[
                max(0, n - w) // size : n // size
            ],
            "a block that the window begins inside is read, too.": lambda table, size, n, w: table[
                cdiv(max(0, n - w), size) : cdiv(n, size)
            ],
            "these are logical blocks; look them up in the table.": lambda table, size, n, w: list(
                range(max(0, n - w) // size, cdiv(n, size))
            ),
        },
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
    calls = [
        (
            rng.choice([2000, 3350, 4800]),
            rng.randint(8, 24),
            131_072,
            1024 * rng.randint(2, 8),
            rng.choice([20, 30, 40]),
        )
        for _ in range(30)
    ]
    return FunctionExercise(
        "A decode step may take some milliseconds on a GPU with a bandwidth of gb_per_second. It "
        "moves the weights once, and K and V of each chat: once if they are read in place, three "
        "times if they are gathered first (read, written, read again). How many chats fit into a "
        "step? Write batches(gb_per_second, weights_gb, bytes_per_token, chat_tokens, "
        "milliseconds); it returns a pair (in place, gathered). A GB is 1,000,000,000 bytes.",
        "How many GB can be moved in that time, and how many of them are the weights?",
        _solve_batches,
        calls=calls,
        learnt="reading in place serves three times as many people.",
        mistakes={
            "the other way round: gathering moves more.": lambda *given: _solve_batches()(*given)[
                ::-1
            ],
            "the weights are read in every step, too.": lambda rate, weights, *rest: (
                _solve_batches()(rate, 0, *rest)
            ),
            "gathering moves K and V three times: read, written, read again.": lambda *given: (
                _solve_batches()(*given)[0],
                _solve_batches()(*given)[0] // 2,
            ),
            "each chat has its own K and V, but the weights are read once for all.": (
                lambda rate, weights, token, tokens, ms: tuple(
                    int(ms / 1e3 * rate / (weights + times * token * tokens / 1e9))
                    for times in (1, 3)
                )
            ),
            "a millisecond is a thousandth of a second.": lambda rate, weights, token, tokens, ms: (
                _solve_batches()(rate, weights, token, tokens, 1e3 * ms)
            ),
            "round down: a chat more takes too long.": lambda *given: tuple(
                chats + 1 for chats in _solve_batches()(*given)
            ),
        },
    )


def _solve_batches():
    def batches(gb_per_second, weights_gb, bytes_per_token, chat_tokens, milliseconds):
        for_the_cache = milliseconds / 1e3 * gb_per_second - weights_gb  # GB beside the weights
        chat = bytes_per_token * chat_tokens / 1e9
        return int(for_the_cache / chat), int(for_the_cache / (3 * chat))

    return batches
