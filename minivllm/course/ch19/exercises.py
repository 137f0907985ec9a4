"""Exercises of notebook 19: tokens in a pool, the value of a byte in e4m3, a scale that is safe."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: blocks of a pool ----------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def pool(rng: Random) -> Exercise:
    """Bytes of a token in int8, its scales included, and the blocks of a pool."""
    return Exercise(
        _check_pool,
        "Begin with one layer, one head, and K alone: head_dim codes and one scale.",
        _solve_pool,
        "K and V are kept in int8, each number a byte. Each token has, in each layer and KV head, "
        "one float32 scale for its K and one for its V. How many bytes is a token, and how many "
        "whole blocks are in the pool? Answer with a pair.",
        {
            "num_layers": rng.choice([24, 28, 32]),
            "num_kv_heads": rng.choice([2, 4, 8]),
            "head_dim": rng.choice([64, 128]),
            "block_size": rng.choice([16, 32]),
            "pool_bytes": rng.choice([1, 2, 3, 5]) * 2**30,
        },
    )


def _solve_pool(num_layers, num_kv_heads, head_dim, block_size, pool_bytes):
    per_token = 2 * num_layers * num_kv_heads * (head_dim + 4)
    return per_token, pool_bytes // (block_size * per_token)


def _check_pool(answer, num_layers, num_kv_heads, head_dim, block_size, pool_bytes) -> str:
    size, blocks = whole_numbers(answer, ("bytes", "blocks"))
    right, most = _solve_pool(num_layers, num_kv_heads, head_dim, block_size, pool_bytes)
    heads = 2 * num_layers * num_kv_heads
    compare(
        size,
        right,
        {
            "bytes: the codes alone; each token and head has scales, too.": heads * head_dim,
            "bytes: K and V are two.": right // 2,
            "bytes: that is in 16 bits, without scales.": 2 * heads * head_dim,
            "bytes: a float32 has four bytes.": heads * (head_dim + 1),
            "bytes: each number has one byte; the scale has four.": 4 * heads * (head_dim + 1),
            "bytes: that is one layer.": right // num_layers,
            "bytes: that is one KV head.": right // num_kv_heads,
            "bytes: that is a block, and not a token.": right * block_size,
            "bytes: these are bits.": right * 8,
            "bytes: K and V have a scale each.": heads * head_dim + heads * 2,
            "bytes: each layer and KV head has scales of its own.": heads * head_dim + 8,
            "bytes: each KV head has scales of its own.": heads * head_dim + 8 * num_layers,
            "bytes: a row of codes has one scale, not one for each code.": heads * head_dim * 5,
            "bytes: scales are added, each once, to its codes.": heads * head_dim * 4,
        },
        f"bytes: not {size:,}. K and V, {num_layers} layers and {num_kv_heads} KV heads are "
        f"{heads:,} rows; each has {head_dim} codes and a scale of 4 bytes.",
        f"bytes: it is {right:,}.",
    )
    compare(
        blocks,
        most,
        {
            "blocks: these are tokens; a block has several.": pool_bytes // right,
            "blocks: that is with 16 bits a number.": pool_bytes
            // (block_size * 2 * heads * head_dim),
            "blocks: only whole ones.": most + 1,
            "blocks: scales take memory, too.": pool_bytes // (block_size * heads * head_dim),
            "blocks: each block has the tokens' K and V of all layers.": pool_bytes
            // (block_size * right // num_layers),
        },
        f"blocks: not {blocks:,}. A block has {block_size} tokens of {right:,} bytes each.",
        f"blocks: it is {most:,}.",
    )
    return f"{2 * head_dim / (head_dim + 4):.2f} times the tokens of a cache in 16 bits."


# -- stretch: what a byte is ---------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def value(rng: Random) -> FunctionExercise:
    """The number that a byte of e4m3 is."""
    numbers = [byte for byte in range(256) if byte & 127 != 127]  # those two are NaN
    calls = [(0x38 + rng.randint(0, 7),), (rng.randint(1, 7),), (128 + rng.randint(64, 120),)]
    calls += [(byte,) for byte in rng.sample(numbers, 60)]
    return FunctionExercise(
        "A byte of e4m3 has, from the highest bit on, a sign, 4 bits of exponent and 3 of "
        "fraction. With an exponent e above 0 it is (1 + fraction / 8) * 2 ** (e - 7); with e = 0 "
        "it is fraction / 8 * 2 ** -6. Write value(byte), the number. (NaN is not asked for.)",
        "Take the three fields out with >> and &, then look whether e is 0.",
        _solve_value,
        calls=calls,
        learnt="the largest is 0x7e, 448; behind it there is NaN alone.",
        mistakes={
            "with e = 0 there is no 1 before the fraction.": _value(least=None),
            "with e = 0 the factor is 2 ** -6, as with e = 1.": _value(least=-7),
            "the highest bit is a sign.": _value(signed=False),
            "that is e5m2: here are 4 bits of exponent and 3 of fraction.": _e5m2,
            "the exponent is less by 7, so that small numbers fit.": _value(bias=0),
            "the exponent's offset is 7.": _value(bias=8),
        },
    )


def _solve_value():
    def value(byte):
        sign, exponent, fraction = byte >> 7, byte >> 3 & 15, byte & 7
        if exponent == 0:
            size = fraction / 8 * 2**-6
        else:
            size = (1 + fraction / 8) * 2.0 ** (exponent - 7)
        return -size if sign else size

    return value


def _value(bias: int = 7, signed: bool = True, least: int | None = -6):
    """Make a ``value`` with a mistake."""

    def value(byte):
        exponent = byte >> 3 & 15
        fraction = byte & 7
        size = (1 + fraction / 8) * 2.0 ** (exponent - bias)
        if exponent == 0 and least is not None:
            size = fraction / 8 * 2.0**least
        return -size if signed and byte >> 7 else size

    return value


def _e5m2(byte):
    exponent = byte >> 2 & 31
    fraction = byte & 3
    size = (1 + fraction / 4) * 2.0 ** (exponent - 15) if exponent else fraction / 4 * 2.0**-14
    return -size if byte >> 7 else size


# -- design: a scale ----------------------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def k_scale(rng: Random) -> Exercise:
    """The least power of two with which nothing clamps, and what stays above the smallest step."""
    return Exercise(
        _check_k_scale,
        "First the power: the largest key divided by it must be at most 448. Then multiply.",
        _solve_k_scale,
        "A layer's keys are divided by k_scale and written in e4m3, whose largest number is 448. "
        "k_scale shall be 2 ** n, with the least n so that no key clamps. What is written as 1/64 "
        "or more is kept to within 6 %; below that e4m3 has fixed steps. largest is the largest "
        "number of all keys. Which n, and how many of the sizes are written as less than 1/64? "
        "Answer with a pair (n, number).",
        {
            "largest": rng.choice([3, 50, 700, 900, 2000, 5000]),
            "sizes": sorted(rng.sample([2.0**-k for k in range(1, 14)], 6), reverse=True),
        },
    )


def _solve_k_scale(largest, sizes):
    n = -20
    while largest / 2.0**n > 448:
        n += 1
    return n, sum(size / 2.0**n < 1 / 64 for size in sizes)


def _check_k_scale(answer, largest, sizes) -> str:
    n, number = whole_numbers(answer, ("n", "number"))
    right, below = _solve_k_scale(largest, sizes)
    compare(
        n,
        right,
        {
            "n: with this the largest key still clamps.": right - 1,
            "n: nothing clamps, but half of that is enough, too.": right + 1,
            "n: keys are divided by k_scale, so the sign is the other one.": -right,
            "n: that is k_scale 1.": 0,
        },
        f"n: with 2 ** {n} the largest key is {largest / 2.0 ** max(-99, min(n, 99)):g}.",
        f"n: it is {right}.",
    )
    compare(
        number,
        below,
        {
            "number: those are the ones at or above it.": len(sizes) - below,
            "number: compare what is written, the size divided by k_scale.": sum(
                size < 1 / 64 for size in sizes
            ),
        },
        f"number: not {number}. The sizes are divided by {2.0**right:g}.",
        f"number: it is {below}.",
    )
    return "e4m3 has so wide a range that a scale need only be about right."
