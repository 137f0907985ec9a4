"""Exercises of notebook 11: a merge by hand, how many ranges for a GPU, how long a partition is."""

from __future__ import annotations

import math
from random import Random

from minivllm.course.asking.answers import compare, whole_number
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

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
    answer = whole_number(answer)
    right = _solve_merge(results, lse)
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
        wrong = "a weighted mean is between the two results."
    compare(answer, right, means, wrong, same=lambda got, mean: abs(got - mean) < 1)
    return f"the parts weigh {shares}, although they read {lengths[0]} and {lengths[1]} tokens."


# -- stretch: how many ranges for a GPU --------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def splits(rng: Random) -> Exercise:
    """In how many ranges should a batch's sequences be cut?"""
    calls = [
        (
            rng.randint(1, 12),
            rng.choice([2, 4, 8]),
            rng.randrange(2048, 65537, 512),
            rng.choice([72, 108, 132]),
        )
        for _ in range(20)
    ]
    return FunctionExercise(
        "A batch decodes, and all of its num_seqs sequences have seq_len tokens. By the "
        "notebook's model ch11.token_times, which number of ranges, of 1 to 512, is the fastest? "
        "If several are, the smallest of them. Write fastest(num_seqs, num_kv_heads, seq_len, "
        "num_processors).",
        "Try them all: num_programs is num_seqs * num_kv_heads.",
        _solve_splits,
        calls=calls,
        learnt="few long sequences are cut into many ranges, a large batch into one.",
        mistakes={
            "each KV head of a sequence has a program of its own.": lambda seqs, heads, *rest: (
                _solve_splits()(seqs, 1, *rest)
            ),
            "ranges that fill the processors just once are not always the fastest.": (
                lambda seqs, heads, n, processors: max(1, processors // (seqs * heads))
            ),
            "the merge takes time, too: more ranges are not always faster.": lambda *given: (
                MOST_SPLITS
            ),
            "one range each leaves processors without a program.": lambda *given: 1,
        },
    )


def _solve_splits():
    def fastest(num_seqs, num_kv_heads, seq_len, num_processors):
        def time(num_splits):
            return token_times(num_splits, num_seqs * num_kv_heads, seq_len, num_processors)

        return min(range(1, MOST_SPLITS + 1), key=time)  # of equals, min takes the first

    return fastest


# -- design: how long a partition is -----------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def partition(rng: Random) -> Exercise:
    """Ranges of a fixed length instead of a fixed number: which length?"""
    return FunctionExercise(
        "A kernel cuts every sequence into partitions of a fixed number of tokens, a power of two. "
        "Short ones make more programs, but room for all parts (float32: head_dim numbers and an "
        "lse) must be set aside once, for max_num_seqs requests of max_model_len tokens. Write "
        "shortest(max_num_seqs, num_heads, head_dim, max_model_len, room_mb): the shortest length "
        "that fits into room_mb (of 1,000,000 bytes).",
        "A part is head_dim numbers and an lse, of 4 bytes each. How many parts can there be?",
        _solve_partition,
        calls=[_parts_and_room(rng) for _ in range(40)],
        learnt="half of the length is twice the parts: programs are paid for with memory.",
        mistakes={
            "each head has parts of its own.": lambda seqs, heads, *rest: _solve_partition()(
                seqs, 1, *rest
            ),
            "a float32 has 4 bytes.": lambda *given: _solve_partition()(*given[:4], 4 * given[4]),
            "there must be room for all requests of a batch.": lambda seqs, *rest: (
                _solve_partition()(1, *rest)
            ),
            "give a power of two.": lambda seqs, heads, dim, n, room: math.ceil(
                n * seqs * heads * (dim + 1) * 4 / (room * 1e6)
            ),
            "that needs more than room_mb.": lambda *given: _solve_partition()(*given) // 2,
            "half of that fits, too.": lambda *given: 2 * _solve_partition()(*given),
        },
    )


def _parts_and_room(rng: Random) -> tuple:
    num_seqs = rng.choice([32, 48, 64, 96, 128, 256])
    num_heads = rng.choice([16, 28, 32, 40, 64])
    head_dim = rng.choice([64, 80, 96, 128])
    max_model_len = 1024 * rng.choice([16, 32, 64, 128])
    length = rng.choice([128, 256, 512, 1024, 2048])
    parts = num_seqs * num_heads * -(-max_model_len // length)
    room_mb = parts * (head_dim + 1) * 4 / 1e6 * rng.uniform(1.1, 1.8)
    return num_seqs, num_heads, head_dim, max_model_len, math.ceil(room_mb)


def _solve_partition():
    def shortest(max_num_seqs, num_heads, head_dim, max_model_len, room_mb):
        rows = max_num_seqs * num_heads
        parts_per_row = room_mb * 1e6 / (rows * (head_dim + 1) * 4)
        length = 1
        while max_model_len / length > parts_per_row:
            length *= 2
        return length

    return shortest
