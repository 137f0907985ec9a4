"""Exercises of notebook A2: how many bytes a fusion saves, and the fusion itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded

# -- core: what fusing saves -------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def passes(rng: Random) -> Exercise:
    """Bytes that the residual's sum and the norm after it move, apart and fused."""
    return Exercise(
        _check_passes,
        "The sum reads x and the residual and writes the residual. The norm reads the residual and "
        "writes its output. What need not be done again if one loop does both?",
        _solve_passes,
        "A layer adds x to the residual, in place, and takes the RMS norm of the sum. Both have "
        "num_tokens rows of hidden_size numbers. How many bytes are moved between the processor "
        "and memory by the two operations one after the other, and how many by a loop that does "
        "both for one row while the row is in the cache? The norm's weight does not count, nor "
        "what stays in a cache. Answer with a pair (apart, fused).",
        {
            "num_tokens": rng.randint(1000, 20000),
            "hidden_size": rng.choice([1024, 2048, 3584, 4096]),
            "bytes_per_number": rng.choice([2, 4]),
        },
    )


def _solve_passes(num_tokens, hidden_size, bytes_per_number):
    one_pass = num_tokens * hidden_size * bytes_per_number
    return 5 * one_pass, 4 * one_pass


def _check_passes(answer, num_tokens, hidden_size, bytes_per_number) -> str:
    one_pass = num_tokens * hidden_size * bytes_per_number
    for name, found, right in zip(
        ("apart", "fused"), whole_numbers(answer, ("apart", "fused")), (5, 4), strict=True
    ):
        if found * bytes_per_number == right * one_pass:
            raise NotYet(f"{name}: these are numbers; each has {bytes_per_number} bytes.")
        if found % one_pass:
            raise NotYet(f"{name}: this is not a multiple of {one_pass:,} bytes, one pass.")
        mistakes = {
            "The sum reads x and the residual, and writes; the norm reads, and writes: five.": (
                right == 5 and found == 4 * one_pass
            ),
            "One loop saves the read of a row that is still in the cache, and no more.": (
                right == 4 and found in (2 * one_pass, 3 * one_pass)
            ),
            "In one loop the norm finds the row in the cache.": (
                right == 4 and found == 5 * one_pass
            ),
            "The weight is small and does not count; a pass is one array of all rows.": (
                found == (right + 1) * one_pass
            ),
        }
        for explanation, made in mistakes.items():
            if made:
                raise NotYet(f"{name}: {found // one_pass} passes. {explanation}")
        if found != right * one_pass:
            more = "more" if found < right * one_pass else "fewer"
            raise NotYet(f"{name}: there are {more} than {found // one_pass} passes.")
    return "a fifth of the bytes is saved, and the price of starting one operation."


# -- stretch: write it ---------------------------------------------------------------------------

_EPS = 1e-5


def _solve_add_norm(**_) -> Callable[..., Any]:
    import numpy as np
    from numba import njit

    @njit
    def my_add_norm(x, residual, weight, eps):
        output = np.empty_like(x)
        for i in range(x.shape[0]):
            squares = np.float32(0)
            for d in range(x.shape[1]):
                residual[i, d] += x[i, d]
                squares += residual[i, d] * residual[i, d]
            scale = 1 / np.sqrt(squares / x.shape[1] + eps)
            for d in range(x.shape[1]):
                output[i, d] = residual[i, d] * scale * weight[d]
        return output

    return my_add_norm


@seeded(difficulty=3, minutes=20)
def add_norm(rng: Random) -> Exercise:
    """The sum and the norm in one loop."""
    return Exercise(
        _check_add_norm,
        "Two loops over the numbers of a row: the first adds, writes the residual and sums up the "
        "squares; the second scales. Under numba's njit plain loops are fast.",
        _solve_add_norm,
        "Write my_add_norm(x, residual, weight, eps) for float32 arrays of NumPy, x and residual "
        "[num_tokens, hidden_size]: add x to residual, in place, and return the RMS norm of the "
        "sum, sum / sqrt(mean of squares + eps) * weight. Visit each row once. It is called with "
        "these shapes; numbers is the seed of NumPy's generator that fills them.",
        {
            "shapes": [(1, rng.randint(5, 16)), (rng.randint(3, 9), rng.randint(40, 90))],
            "numbers": rng.randrange(1000),
        },
    )


def _check_add_norm(function: Any, shapes, numbers) -> str:
    import numpy as np  # this room is read without it

    if not callable(function):
        raise NotYet("give a function of (x, residual, weight, eps).")
    rng = np.random.default_rng(numbers)
    for shape in shapes:
        x, residual = rng.standard_normal((2, *shape), dtype=np.float32)
        weight = rng.standard_normal(shape[1], dtype=np.float32)
        total = residual + x
        x_before = x.copy()
        squares = np.mean(total.astype(np.float64) ** 2, axis=-1, keepdims=True)
        right = total / np.sqrt(squares + _EPS) * weight
        try:
            output = function(x, residual, weight, _EPS)
        except Exception as error:  # there is no end to what a function may do
            raise NotYet(f"with x of shape {shape} it raised {error!r}.") from error
        if not np.array_equal(x, x_before):
            raise NotYet("x was changed; only the residual may be.")
        if not np.allclose(residual, total, atol=1e-6):
            raise NotYet("the residual does not hold the sum afterwards, for the next layer.")
        if not isinstance(output, np.ndarray) or output.shape != shape:
            raise NotYet(f"return an array of shape {shape}, as x has.")
        if np.allclose(output * np.float32(np.sqrt(shape[1])), right, rtol=1e-3):
            raise NotYet("this divides by the root of the sum of squares, not of their mean.")
        if np.allclose(output * weight, right, atol=1e-4):
            raise NotYet("the weight is missing.")
        if not np.allclose(output, right, atol=1e-4):
            wrong = np.argwhere(~np.isclose(output, right, atol=1e-4))[0].tolist()
            mine, theirs = (float(array[tuple(wrong)]) for array in (output, right))
            raise NotYet(
                f"output{wrong} is wrong.",
                f"output{wrong} should be {theirs:.4f}, yours is {mine:.4f}.",
            )
    return "one loop, and the residual is read once."
