"""Exercises of notebook 10: a program's loads by hand, what a tile reads, filling a GPU."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: a program's loads by hand -----------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def loads(rng: Random) -> Exercise:
    """Which physical blocks does each turn of a program's loop load from?"""
    tile = rng.choice([4, 8])
    block_size = tile - rng.choice([1, 2])  # so that tiles end inside of blocks
    seq_len = rng.randint(2 * tile + 1, 3 * tile)
    return Exercise(
        _check_loads,
        "Write down the positions of each turn first; position p is in table[p // block_size].",
        _solve_loads,
        "A program takes tile positions of this sequence in each turn of its loop. Which "
        "physical blocks does each turn load from? Answer with a list for each turn.",
        {
            "table": rng.sample(range(1, 10), -(-seq_len // block_size)),
            "block_size": block_size,
            "seq_len": seq_len,
            "tile": tile,
        },
    )


def _check_loads(answer, table, block_size, seq_len, tile) -> str:
    right = _solve_loads(table, block_size, seq_len, tile)
    if not isinstance(answer, (list, tuple)) or len(answer) != len(right):
        raise NotYet(f"give {len(right)} lists, one for each turn of the loop.")
    for turn, (got, blocks) in enumerate(zip(answer, right, strict=True)):
        got = number_list(got, "the physical blocks of one turn")
        if got != blocks:
            first = turn * tile
            last = min((turn + 1) * tile, seq_len) - 1
            where = f"turn {turn} reads the positions {first} to {last}"
            begin, end = first // block_size, last // block_size
            mistakes = {
                "these are logical blocks; look them up in the table.": list(range(begin, end + 1)),
                "a block that the turn before began is loaded again for its last positions.": (
                    blocks[1:]
                ),
                "its last positions are in the next block.": blocks[:-1],
                "these are positions; divide by block_size.": list(range(first, last + 1)),
                "a turn is tile positions, not block_size: it may need two blocks.": (
                    table[turn : turn + 1]
                ),
                "it ends before the next block begins.": table[begin : end + 2],
                "everything up to the turn was loaded before.": table[: end + 1],
            }
            compare(
                got,
                blocks,
                mistakes,
                f"{where}; not blocks {got}.",
                f"{where}: blocks {blocks}, not {got}.",
                at=f"{where}, not blocks {got}: ",
            )
    return "a tile may end inside a block, and the next one goes on there."


def _solve_loads(table, block_size, seq_len, tile) -> list[list[int]]:
    turns = []
    for start in range(0, seq_len, tile):
        last = min(start + tile, seq_len) - 1
        turns.append(table[start // block_size : last // block_size + 1])
    return turns


# -- stretch: what a tile reads ----------------------------------------------------------------


@seeded(difficulty=4, minutes=20)
def program_reads(rng: Random) -> Exercise:
    """Which blocks does the program of a tile read?"""
    calls = []
    for _ in range(100):
        block_size = rng.choice([1, 3, 4])
        seq_len = rng.randint(1, 30)
        tokens = rng.choice([4, 8])
        table = rng.sample(range(1, 99), -(-seq_len // block_size))
        query_len = rng.randint(1, seq_len)
        tile = rng.randint(0, 3)
        calls.append((table, block_size, query_len, seq_len, tile, tokens))
    return FunctionExercise(
        "Write program_reads(table, block_size, query_len, seq_len, tile, tokens) for the varlen "
        "kernel: the blocks that the program of a sequence's tile number tile reads, in order, if "
        "a tile has this number of tokens. The new tokens are the last query_len of seq_len. If "
        "there is no such tile, an empty list.",
        "At which position is the tile's last token? Its key is the last one that is read.",
        _solve_program_reads,
        calls=calls,
        learnt="early programs of a prompt have little to read, the last one reads everything.",
        mistakes={
            "a token sees the tokens before the new ones, too.": lambda t, size, q, n, tile, w: (
                t[: cdiv(min(q, (tile + 1) * w), size)] if tile * w < q else []
            ),
            "there is no such tile: the new tokens end before it.": lambda t, size, q, n, tile, w: (
                t[: cdiv(min(n, n - q + (tile + 1) * w), size)]
            ),
            "no token of this tile sees what comes after it.": lambda t, size, q, n, tile, w: (
                t[: cdiv(n, size)] if tile * w < q else []
            ),
            "a block that is only partly needed is read, too: round up.": (
                lambda t, size, q, n, tile, w: (
                    t[: min(n, n - q + (tile + 1) * w) // size] if tile * w < q else []
                )
            ),
            "tiles count from 0.": lambda t, size, q, n, tile, w: (
                t[: cdiv(min(n, n - q + tile * w), size)] if tile * w < q else []
            ),
            "it reads everything up to its last token, not only its own tile.": (
                lambda t, size, q, n, tile, w: (
                    t[(n - q + tile * w) // size : cdiv(min(n, n - q + (tile + 1) * w), size)]
                    if tile * w < q
                    else []
                )
            ),
        },
    )


def _solve_program_reads():
    def program_reads(table, block_size, query_len, seq_len, tile, tokens):
        if tile * tokens >= query_len:  # no such tile
            return []
        before = seq_len - query_len
        end = min(seq_len, before + (tile + 1) * tokens)  # nothing after the tile's last token
        return table[: -(-end // block_size)]

    return program_reads


# -- design: filling a GPU ---------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def fill(rng: Random) -> Exercise:
    """How many chats, or how long a prompt, give every processor a program?"""
    calls = [
        (rng.randint(60, 200), rng.choice([2, 4, 8]), rng.choice([16, 32, 64])) for _ in range(40)
    ]
    return FunctionExercise(
        "What is the smallest number of chats whose decode (a program per chat and KV head) gives "
        "every processor of a GPU a program? And the shortest single prompt that does so in the "
        "varlen kernel? Write fill(num_processors, num_kv_heads, tokens_per_tile); it returns a "
        "pair (chats, tokens of the prompt).",
        "How many times the KV heads are at least as many as the processors? And what is the "
        "shortest prompt with that number of tiles?",
        _solve_fill,
        calls=calls,
        learnt="a few long chats leave most of a GPU idle; notebook 11 gives it more programs.",
        mistakes={
            "round up, else some processors have no program.": lambda processors, heads, tile: (
                processors // heads,
                max(0, processors // heads - 1) * tile + 1,
            ),
            "fewer tokens do: the last tile needs only one.": lambda processors, heads, tile: (
                cdiv(processors, heads),
                cdiv(processors, heads) * tile,
            ),
            "each KV head has a program of its own.": lambda processors, heads, tile: (
                processors,
                (processors - 1) * tile + 1,
            ),
            "the last tile has one token, so there are fewer full ones.": (
                lambda processors, heads, tile: (
                    cdiv(processors, heads),
                    cdiv(processors, heads) * tile + 1,
                )
            ),
            "a prompt's tiles have a program for each KV head, too.": (
                lambda processors, heads, tile: (
                    cdiv(processors, heads),
                    (processors - 1) * tile + 1,
                )
            ),
            "that is a prompt of one token for each program; a tile has more.": (
                lambda processors, heads, tile: (cdiv(processors, heads),) * 2
            ),
        },
    )


def _solve_fill():
    def fill(num_processors, num_kv_heads, tokens_per_tile):
        groups = -(-num_processors // num_kv_heads)  # chats, or tiles of one prompt
        return groups, (groups - 1) * tokens_per_tile + 1  # the last tile needs one token only

    return fill
