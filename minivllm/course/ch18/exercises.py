"""Exercises of notebook 18: bytes of a layer, GPTQ's push, what fits a laptop."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes ---------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def size(rng: Random) -> Exercise:
    """Bytes of a layer in packed words, and of what is kept beside them."""
    return Exercise(
        _check_size,
        "Beside the codes each group of a row has one scale and one zero.",
        _solve_size,
        "A layer has this many outputs and inputs. Each weight is a code of this many bits; a "
        "group of group_size neighbouring inputs of one output has a scale of 16 bits and a zero "
        "of as many bits as a code. How many bytes are the codes, and how many are the scales and "
        "zeros? Answer with a pair.",
        {
            "outputs": rng.choice([1024, 2048, 4096]),
            "inputs": rng.choice([1024, 2048, 4096]) * rng.choice([1, 3]),
            "bits": rng.choice([2, 4, 8]),
            "group_size": rng.choice([32, 64, 128]),
        },
    )


def _solve_size(outputs, inputs, bits, group_size):
    groups = outputs * inputs // group_size
    return outputs * inputs * bits // 8, groups * (16 + bits) // 8


def _check_size(answer, outputs, inputs, bits, group_size) -> str:
    codes, beside = whole_numbers(answer, ("codes", "scales and zeros"))
    right, others = _solve_size(outputs, inputs, bits, group_size)
    groups = outputs * inputs // group_size
    compare(
        codes,
        right,
        {
            "codes: these are bits; a byte has 8.": 8 * right,
            "codes: that is a byte each; they are packed.": outputs * inputs,
            "codes: that is the layer in 16 bits.": 2 * outputs * inputs,
        },
        f"codes: not {codes:,} bytes. There are outputs * inputs of them.",
        f"codes: it is {right:,} bytes.",
    )
    compare(
        beside,
        others,
        {
            "scales and zeros: the scales alone; zeros count, too.": 2 * groups,
            "scales and zeros: these are bits; a byte has 8.": 8 * others,
            "scales and zeros: that is one row; each output has groups of its own.": others
            // outputs,
            "scales and zeros: a row has more than one group.": outputs * (16 + bits) // 8,
            "scales and zeros: a zero is packed, as a code is.": 4 * groups,
        },
        f"scales and zeros: not {beside:,} bytes. There are {groups:,} groups.",
        f"scales and zeros: it is {others:,} bytes.",
    )
    return f"together {8 * (right + others) / (outputs * inputs):.2f} bits a weight, beside 16."


# -- stretch: one step of GPTQ -------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def push(rng: Random) -> FunctionExercise:
    """One column is rounded, and the columns behind it make up for its error."""
    calls = []
    while len(calls) < 30:
        columns = rng.randint(3, 5)
        w = [rng.randint(-24, 24) / 8 for _ in range(columns)]
        k = rng.randint(0, columns - 2) if len(calls) else 1
        factor = [0.0] * k + [rng.choice([0.5, 2.0])]
        factor += [rng.choice([-1.0, -0.5, 0.5, 1.0]) for _ in range(columns - k - 1)]
        scale = rng.choice([0.5, 1.0])
        w[:k] = [round(weight / scale) * scale for weight in w[:k]]
        if (w[k] / scale) % 1 not in (0.0, 0.5):  # there is an error, and one nearest code
            calls.append((w, factor, k, scale))
    return FunctionExercise(
        "One step of GPTQ on one row. w holds the weights, of which those before column k are "
        "rounded. Write push(w, factor, k, scale): a new list in which w[k] is rounded to the "
        "nearest multiple of scale, and each later column j is moved by -error * factor[j], where "
        "error is the weight less its rounded value, divided by factor[k].",
        "Compute the rounded value and the error first; then build the list from three pieces.",
        _solve_push,
        calls=calls,
        learnt="that is the inner loop of minivllm/lab/quantize/gptq.py, for one row.",
        mistakes={
            "the later columns are as before: that is rounding to nearest.": _push(pushes=False),
            "the error has another sign: the weight less its rounded value.": _push(sign=-1),
            "the error is not divided by factor[k].": _push(divides=False),
            "column k itself is moved, too; it is rounded and stays.": _push(moves_k=True),
            "the later columns are moved, and not rounded yet.": _push(rounds_all=True),
        },
    )


def _solve_push():
    def push(w, factor, k, scale):
        rounded = round(w[k] / scale) * scale
        error = (w[k] - rounded) / factor[k]
        later = [w[j] - error * factor[j] for j in range(k + 1, len(w))]
        return [*w[:k], rounded, *later]

    return push


def _push(
    pushes: bool = True, sign: int = 1, divides: bool = True, moves_k: bool = False,
    rounds_all: bool = False,
):  # fmt: skip
    """Make a ``push`` with a mistake."""

    def push(w, factor, k, scale):
        rounded = round(w[k] / scale) * scale
        error = sign * pushes * (w[k] - rounded) / (factor[k] if divides else 1)
        later = [w[j] - error * factor[j] for j in range(k + 1, len(w))]
        if rounds_all:
            later = [round(weight / scale) * scale for weight in later]
        return [*w[:k], rounded - moves_k * error * factor[k], *later]

    return push


# -- design: what fits ---------------------------------------------------------------------------


@seeded(difficulty=4, minutes=12)
def fits(rng: Random) -> Exercise:
    """The most bits with which a model and its chats fit into a laptop."""
    while True:
        given = {
            "memory_gb": rng.choice([6, 8, 12, 16, 24]),
            "linear_params": rng.choice([3, 7, 12]) * 10**9,
            "other_params": rng.choice([256, 512, 1024]) * 10**6,
            "kv_bytes_per_token": rng.choice([64, 128, 256]) * 1024,
            "num_tokens": rng.choice([4, 8, 16]) * 1024,
        }
        if _solve_fits(**given)[0] in (3, 4, 8):
            break
    return Exercise(
        _check_fits,
        "First take off what the other weights and the tokens need; what is left is for the linear "
        "layers.",
        _solve_fits,
        "The linear layers can have codes of 16 (floats), 8, 4, 3 or 2 bits. Below 16, each group "
        "of 128 weights has a scale and a zero as well: 24 bits in all, whatever the codes are. "
        "The other weights stay in 16 bits. A GB is 10**9 bytes. What is the largest number of "
        "bits with which the model and num_tokens tokens of K and V fit, and how many bytes are "
        "all weights then? Answer with a pair (bits, bytes).",
        given,
    )


CHOICES = (16, 8, 4, 3, 2)


def _weight_bytes(bits: int, linear: int, other: int, beside: int = 24) -> int:
    groups = 0 if bits == 16 else linear // 128
    return (linear * bits + groups * beside) // 8 + 2 * other


def _solve_fits(memory_gb, linear_params, other_params, kv_bytes_per_token, num_tokens):
    room = memory_gb * 10**9 - num_tokens * kv_bytes_per_token
    for bits in (16, 8, 4, 3, 2):
        groups = 0 if bits == 16 else linear_params // 128
        weights = (linear_params * bits + groups * 24) // 8 + 2 * other_params
        if weights <= room:
            return bits, weights
    return 0, 0


def _check_fits(
    answer, memory_gb, linear_params, other_params, kv_bytes_per_token, num_tokens
) -> str:
    bits, weights = whole_numbers(answer, ("bits", "bytes"))
    if bits not in CHOICES:
        raise NotYet(f"bits: one of {', '.join(map(str, CHOICES))}.")
    room = memory_gb * 10**9 - num_tokens * kv_bytes_per_token
    needed = _weight_bytes(bits, linear_params, other_params)
    if needed > room:
        tokens = " with the tokens' K and V" if needed <= memory_gb * 10**9 else ""
        raise NotYet(
            f"bits: with {bits} the weights take {needed / 1e9:.2f} GB{tokens}, which is too much."
        )
    most, right = _solve_fits(
        memory_gb, linear_params, other_params, kv_bytes_per_token, num_tokens
    )
    if bits < most:
        raise NotYet(f"bits: {bits} fit, but so do more.")
    compare(
        weights,
        right,
        {
            "bytes: scales and zeros count, too.": _weight_bytes(
                bits, linear_params, other_params, beside=0
            ),
            "bytes: the other weights stay in 16 bits.": _weight_bytes(bits, linear_params, 0)
            + other_params * bits // 8,
            "bytes: the other weights are missing.": _weight_bytes(bits, linear_params, 0),
            "bytes: these are bits; a byte has 8.": 8 * right,
            "bytes: of the weights alone, without K and V.": right
            + num_tokens * kv_bytes_per_token,
        },
        f"bytes: with {bits} bits it is not {weights:,}.",
        f"bytes: with {bits} bits it is {right:,}.",
    )
    whole = 2 * (linear_params + other_params)
    return f"{right / 1e9:.2f} GB instead of {whole / 1e9:.2f}."
