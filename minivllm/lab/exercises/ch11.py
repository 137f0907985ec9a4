"""Exercises of notebook 11: a merge by hand, how many ranges for a GPU, how long a partition is."""

from __future__ import annotations

import math
from random import Random

from minivllm.lab.exercises.answers import NotYet, compare, whole_number
from minivllm.lab.exercises.exercise import Exercise, seeded

SECOND_KERNEL = 256  # token times; on an H200 some 4 microseconds, to start the merge
MOST_SPLITS = 512


def token_times(num_splits: int, num_programs: int, seq_len: int, num_processors: int) -> int:
    """A model of a decode's attention; its unit is the time in which a program reads one token.

    The processors take one program each and come back for the next (a wave). All sequences are of
    one length. The merge is a second kernel to start, and then reads a row for each part.
    """
    waves = -(-num_programs * num_splits // num_processors)
    longest = -(-seq_len // num_splits)
    merge = SECOND_KERNEL + num_splits if num_splits > 1 else 0
    return waves * longest + merge


# -- core: merge two parts by hand -------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def merge(rng: Random) -> Exercise:
    """Two parts of one sequence: what is the whole?"""
    first, second = rng.sample(range(1, 10), 2)
    short, long = rng.randrange(16, 65, 16), rng.randrange(96, 193, 16)
    result = rng.randint(0, 20)
    lengths = (short, long) if first > second else (long, short)  # the longer part weighs less
    return Exercise(
        _check_merge,
        "The exp of a part's lse is its sum of exps; a part weighs its share of both sums.",
        _solve_merge,
        "A sequence was cut in two. These are, for one row and one lane, the parts' results, their "
        "lse (logs of sums of exps), and how many tokens they read. What is the result over all "
        "tokens?",
        {
            "results": (result, result + 2 * rng.randint(1, 4) * (first + second)),
            "lse": (f"ln {first}", f"ln {second}"),
            "lengths": lengths,
        },
    )


def _solve_merge(results, lse, **_):
    sums = [int(text.removeprefix("ln ")) for text in lse]
    return sum(s * result for s, result in zip(sums, results, strict=True)) // sum(sums)


def _check_merge(answer, results, lse, lengths) -> str:
    answer, right = whole_number(answer), _solve_merge(results, lse)
    sums = [int(text.removeprefix("ln ")) for text in lse]
    shares = f"{sums[0]}/{sum(sums)} and {sums[1]}/{sum(sums)}"
    weights_of = {
        "that is the mean of the results; a part may have found more than the other.": (1, 1),
        "you weigh by length; what counts is how well the keys matched.": lengths,
        "the weights are changed over: a larger lse weighs more.": sums[::-1],
        "you weigh by lse; its exp is the sum.": [math.log(s) for s in sums],
    }
    means = {
        explanation: sum(w * r for w, r in zip(weights, results, strict=True)) / sum(weights)
        for explanation, weights in weights_of.items()
    }
    wrong = f"the parts weigh {shares}."
    if not min(results) <= answer <= max(results):
        wrong = "a weighted mean lies between the two results."
    compare(answer, right, means, wrong, same=lambda got, mean: abs(got - mean) < 1)
    return f"the parts weigh {shares}, although they read {lengths[0]} and {lengths[1]} tokens."


# -- stretch: how many ranges for a GPU --------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def splits(rng: Random) -> Exercise:
    """In how many ranges should a batch's sequences be cut?"""
    return Exercise(
        _check_splits,
        "Try them all: num_programs is num_seqs * num_kv_heads.",
        _solve_splits,
        "A batch decodes, and all of its sequences have seq_len tokens. By the notebook's model "
        "token_times, which number of ranges is the fastest? If several are, the smallest of them.",
        {
            "num_seqs": rng.randint(1, 12),
            "num_kv_heads": rng.choice([2, 4, 8]),
            "seq_len": rng.randrange(2048, 65537, 512),
            "num_processors": rng.choice([72, 108, 132]),
        },
    )


def _solve_splits(num_seqs, num_kv_heads, seq_len, num_processors):
    def time(num_splits):
        return token_times(num_splits, num_seqs * num_kv_heads, seq_len, num_processors)

    return min(range(1, MOST_SPLITS + 1), key=time)  # of equals, min takes the first


def _check_splits(answer, num_seqs, num_kv_heads, seq_len, num_processors) -> str:
    answer = whole_number(answer)
    if not 1 <= answer <= MOST_SPLITS:
        raise NotYet(f"give a number from 1 to {MOST_SPLITS}.")
    batch = num_seqs * num_kv_heads, seq_len, num_processors
    right = _solve_splits(num_seqs, num_kv_heads, seq_len, num_processors)
    took, best, whole = (token_times(n, *batch) for n in (answer, right, 1))
    if took > best:
        raise NotYet(f"{answer} ranges take {took:,} token times; the best takes {best:,}.")
    if answer > right:
        raise NotYet(f"{answer} ranges are as fast as can be, but fewer would do.")
    if right == 1:
        return f"whole sequences take {whole:,} token times, and splitting would not help."
    return f"{best:,} token times instead of {whole:,}: {whole / best:.1f} times as fast."


# -- design: how long a partition is -----------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def partition(rng: Random) -> Exercise:
    """Ranges of a fixed length instead of a fixed number: which length?"""
    shape = {
        "max_num_seqs": rng.choice([32, 48, 64, 96, 128, 256]),
        "num_heads": rng.choice([16, 28, 32, 40, 64]),
        "head_dim": rng.choice([64, 80, 96, 128]),
        "max_model_len": rng.choice([16_384, 32_768, 65_536, 131_072]),
    }
    room = _parts_mb(rng.choice([128, 256, 512, 1024, 2048]), **shape) * rng.uniform(1.1, 1.8)
    return Exercise(
        _check_partition,
        "A part is head_dim numbers and an lse, of 4 bytes each. How many parts can there be?",
        _solve_partition,
        "A kernel cuts every sequence into partitions of so many tokens, a power of two. Short "
        "ones make more programs, but room for all parts (float32) must be set aside once, for "
        "the largest batch of the longest requests. What is the shortest length that fits into "
        "room_mb (of 1,000,000 bytes)?",
        {**shape, "room_mb": math.ceil(room)},
    )


def _parts_mb(length, max_num_seqs, num_heads, head_dim, max_model_len) -> float:
    num_parts = max_num_seqs * num_heads * -(-max_model_len // length)
    return num_parts * (head_dim + 1) * 4 / 1e6


def _solve_partition(max_num_seqs, num_heads, head_dim, max_model_len, room_mb):
    rows = max_num_seqs * num_heads
    parts_per_row = room_mb * 1e6 / (rows * (head_dim + 1) * 4)
    length = 1
    while max_model_len / length > parts_per_row:
        length *= 2
    return length


def _check_partition(answer, room_mb, **shape) -> str:
    answer = whole_number(answer)
    if answer < 1 or answer & (answer - 1):
        raise NotYet("give a power of two.")
    needed = _parts_mb(answer, **shape)
    if needed > room_mb:
        raise NotYet(f"partitions of {answer} need {needed:,.0f} MB, and there are {room_mb:,}.")
    half = answer // 2
    if half and _parts_mb(half, **shape) <= room_mb:
        raise NotYet(f"partitions of {half} fit, too, and a program reads half as much.")
    return f"{needed:,.0f} MB, and no program reads more than {answer} tokens."
