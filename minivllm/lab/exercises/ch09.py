"""Exercises of notebook 09: slots by hand, blocks under a window, what gathering costs."""

from __future__ import annotations

import random

from minivllm.lab.exercises.answers import NotYet, number_list, whole_numbers
from minivllm.lab.exercises.exercise import Exercise

TABLE, BLOCK_SIZE, POSITIONS = [5, 2, 9], 8, [0, 7, 8, 20]
GB_PER_SECOND, WEIGHTS_GB = 2000, 16
CHAT_GB = 131_072 * 4096 / 1e9


def _check_slots(answer) -> str:
    answer = number_list(answer, "a slot for each position")
    if answer == POSITIONS:
        raise NotYet("these are the positions; the table says which block each of them is in.")
    if len(answer) != len(POSITIONS):
        raise NotYet(f"there are {len(POSITIONS)} positions, and you gave {len(answer)} slots.")
    for position, got, right in zip(POSITIONS, answer, _solve_slots(), strict=True):
        if got != right:
            raise NotYet(f"position {position} is not in slot {got}.")
    return "two neighbours, 7 and 8, are 31 slots apart, and attention does not mind."


def _solve_slots() -> list[int]:
    table, block_size = [5, 2, 9], 8
    return [table[p // block_size] * block_size + p % block_size for p in (0, 7, 8, 20)]


def _check_blocks_read(answer) -> str:
    rng = random.Random(0)
    for _ in range(100):
        block_size, seq_len = rng.choice([1, 3, 4]), rng.randint(1, 30)
        table = rng.sample(range(1, 99), -(-seq_len // block_size) + rng.randint(0, 1))
        window = rng.randint(1, 12)
        call = f"blocks_read({table}, {block_size}, {seq_len}, {window})"
        try:
            got = list(answer(list(table), block_size, seq_len, window))
        except Exception as error:
            raise NotYet(f"{call} raised {error!r}.") from error
        right = _solve_blocks_read()(table, block_size, seq_len, window)
        if got != right:
            raise NotYet(f"{call} should be {right}, yours says {got}.")
    return "blocks before the window are never read again, so they can be freed."


def _solve_blocks_read():
    def blocks_read(table, block_size, seq_len, window):
        first = max(0, seq_len - window)  # the token sees itself, too
        return table[first // block_size : (seq_len - 1) // block_size + 1]

    return blocks_read


def _check_batches(answer) -> str:
    in_place, gathered = whole_numbers(answer, ["in place", "gathered"])
    right = _solve_batches()
    if (in_place, gathered) == right:
        return "reading in place serves three times as many people."
    if (in_place, gathered) == right[::-1]:
        raise NotYet("the other way round: gathering moves more.")
    pairs = zip(("in place", "gathered"), (in_place, gathered), right, (1, 3), strict=True)
    name, got, most, times = next(pair for pair in pairs if pair[1] != pair[2])
    milliseconds = (WEIGHTS_GB + got * times * CHAT_GB) / GB_PER_SECOND * 1e3
    if got > most:
        raise NotYet(f"{name}, {got} chats take {milliseconds:.1f} ms.")
    raise NotYet(f"{name}, {got} chats take {milliseconds:.1f} ms; more would fit.")


def _solve_batches() -> tuple[int, int]:
    for_the_cache = 0.040 * 2000 - 16  # GB that can be moved beside the weights
    chat = 131_072 * 4096 / 1e9
    return int(for_the_cache / chat), int(for_the_cache / (3 * chat))


slots = Exercise(
    _check_slots,
    "Which logical block is the position in, and how far from that block's beginning?",
    _solve_slots,
)
blocks_read = Exercise(
    _check_blocks_read,
    "Find the first and the last position that are seen, and the logical blocks they are in.",
    _solve_blocks_read,
)
batches = Exercise(
    _check_batches,
    "How many GB can be moved in 40 ms, and how many of them are the weights?",
    _solve_batches,
)
