"""Exercises of notebook 10: a program's loads by hand, what a tile reads, filling a GPU."""

from __future__ import annotations

import random

from minivllm.lab.exercises.answers import NotYet, number_list, whole_numbers
from minivllm.lab.exercises.exercise import Exercise

TABLE, BLOCK_SIZE, SEQ_LEN, TILE = [6, 1, 9, 4], 3, 11, 4
PROCESSORS, KV_HEADS, TOKENS_PER_TILE = 132, 8, 32


def _check_loads(answer) -> str:
    right = _solve_loads()
    if not isinstance(answer, (list, tuple)) or len(answer) != len(right):
        raise NotYet(f"give {len(right)} lists, one for each turn of the loop.")
    for turn, (got, blocks) in enumerate(zip(answer, right, strict=True)):
        got = number_list(got, "the physical blocks of one turn")
        if got != blocks:
            first, last = turn * TILE, min((turn + 1) * TILE, SEQ_LEN) - 1
            raise NotYet(f"turn {turn} reads the positions {first} to {last}; not blocks {got}.")
    return "a tile may end inside a block, and the next one goes on there."


def _solve_loads() -> list[list[int]]:
    table, block_size, seq_len, tile = [6, 1, 9, 4], 3, 11, 4
    turns = []
    for start in range(0, seq_len, tile):
        last = min(start + tile, seq_len) - 1
        turns.append(table[start // block_size : last // block_size + 1])
    return turns


def _check_program_reads(answer) -> str:
    rng = random.Random(0)
    for _ in range(100):
        block_size, seq_len, tokens = rng.choice([1, 3, 4]), rng.randint(1, 30), rng.choice([4, 8])
        query_len, tile = rng.randint(1, seq_len), rng.randint(0, 3)
        table = rng.sample(range(1, 99), -(-seq_len // block_size))
        case = block_size, query_len, seq_len, tile, tokens
        call = f"program_reads({', '.join(map(str, (table, *case)))})"
        try:
            got = list(answer(list(table), *case))
        except Exception as error:
            raise NotYet(f"{call} raised {error!r}.") from error
        right = _solve_program_reads()(table, *case)
        if got != right:
            raise NotYet(f"{call} should be {right}, yours says {got}.")
    return "early programs of a prompt have little to read, the last one reads everything."


def _solve_program_reads():
    def program_reads(table, block_size, query_len, seq_len, tile, tokens):
        if tile * tokens >= query_len:  # no such tile
            return []
        before = seq_len - query_len
        end = min(seq_len, before + (tile + 1) * tokens)  # nothing after the tile's last token
        return table[: -(-end // block_size)]

    return program_reads


def _check_fill(answer) -> str:
    chats, tokens = whole_numbers(answer, ["chats", "tokens of the prompt"])
    right_chats, right_tokens = _solve_fill()
    for name, got, right, programs in (
        ("chats", chats, right_chats, chats * KV_HEADS),
        ("tokens", tokens, right_tokens, -(-tokens // TOKENS_PER_TILE) * KV_HEADS),
    ):
        if got < right:
            raise NotYet(f"{got} {name} are {programs} programs for {PROCESSORS} processors.")
        if got > right:
            raise NotYet(f"{got} {name} are enough ({programs} programs), but fewer would do.")
    return "a few long chats leave most of a GPU idle; notebook 11 gives it more programs."


def _solve_fill() -> tuple[int, int]:
    processors, kv_heads, tokens_per_tile = 132, 8, 32
    groups = -(-processors // kv_heads)  # chats, or tiles of one prompt
    return groups, (groups - 1) * tokens_per_tile + 1  # the last tile needs one token only


loads = Exercise(
    _check_loads,
    "Write down the positions of each turn first; position p is in table[p // 3].",
    _solve_loads,
)
program_reads = Exercise(
    _check_program_reads,
    "At which position stands the tile's last token? Its key is the last one that is read.",
    _solve_program_reads,
)
fill = Exercise(
    _check_fill,
    "How many times 8 programs are at least 132? And what is the shortest prompt with so many "
    "tiles?",
    _solve_fill,
)
