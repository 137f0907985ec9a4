"""Exercises of notebook 20: bytes of all-reduces, KV heads, where more ranks bring nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes that ranks exchange ---------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def wire(rng: Random) -> Exercise:
    """All-reduces of a step, their bytes, and what a rank sends for them."""
    return Exercise(
        _check_wire,
        "Two matrices of each layer have cut inputs, and the embedding is cut, too. An all-reduce "
        "is of one vector for each token.",
        _solve_wire,
        "A dense model runs on tensor_parallel_size ranks. A step computes num_tokens tokens; a "
        "number takes 2 bytes. (1) How many all-reduces has the step? (2) How many bytes do the "
        "tensors have that one rank gives to them? (3) How many bytes does a rank send for them "
        "in a ring? For an all-reduce of b bytes among n ranks that is 2 * (n - 1) / n * b. "
        "Answer with a triple.",
        {
            "num_layers": rng.choice([16, 24, 28, 32, 40, 80]),
            "hidden_size": rng.choice([2048, 3072, 4096, 5120, 8192]),
            "num_tokens": rng.choice([1, 16, 64, 200, 512]),
            "tensor_parallel_size": rng.choice([4, 8]),
        },
    )


def _solve_wire(num_layers, hidden_size, num_tokens, tensor_parallel_size):
    num_all_reduces = 2 * num_layers + 1
    given = num_all_reduces * num_tokens * hidden_size * 2
    sent = 2 * (tensor_parallel_size - 1) * given // tensor_parallel_size
    return num_all_reduces, given, sent


def _check_wire(answer, num_layers, hidden_size, num_tokens, tensor_parallel_size) -> str:
    number, given, sent = whole_numbers(answer, ("all-reduces", "bytes given", "bytes sent"))
    size = tensor_parallel_size
    right, given_right, sent_right = _solve_wire(num_layers, hidden_size, num_tokens, size)
    compare(
        number,
        right,
        {
            "all-reduces: the embedding has one, too: a rank has only some of the token ids.": (
                2 * num_layers
            ),
            "all-reduces: attention has one, and so has the MLP.": num_layers + 1,
            "all-reduces: a layer has two, one behind attention and one behind the MLP.": (
                num_layers
            ),
            "all-reduces: the logits are put side by side, which is an all-gather.": right + 1,
            "all-reduces: a matrix whose outputs are cut needs none.": 4 * num_layers + 1,
        },
        f"all-reduces: not {number}. Count the matrices whose inputs are cut, and the embedding.",
        f"all-reduces: there are {right}.",
    )
    compare(
        given,
        given_right,
        {
            "bytes given: these are numbers; each takes 2 bytes.": given_right // 2,
            "bytes given: that is one all-reduce.": 2 * num_tokens * hidden_size,
            "bytes given: each token has a vector of its own.": 2 * right * hidden_size,
            "bytes given: every rank gives whole vectors; they are parts of a sum, not parts of "
            "the vector.": given_right // size,
            "bytes given: that is what all ranks give.": given_right * size,
        },
        f"bytes given: not {given:,}.",
        f"bytes given: it is {given_right:,}.",
    )
    compare(
        sent,
        sent_right,
        {
            "bytes sent: a ring goes round twice, to add and to spread the sums.": sent_right // 2,
            "bytes sent: nothing is sent for a rank's own part of the sums: n - 1 of n.": (
                2 * given_right
            ),
            "bytes sent: in a ring a rank does not send all it has to each other one.": (
                given_right * (size - 1)
            ),
            "bytes sent: that is what all ranks send.": sent_right * size,
            "bytes sent: that is one all-reduce.": sent_right // right,
        },
        f"bytes sent: not {sent:,}.",
        f"bytes sent: it is {sent_right:,}.",
    )
    return f"{size} ranks send {sent_right / given_right} times what they give, 2 ranks once that."


# -- stretch: heads of a rank -------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def kv_bytes(rng: Random) -> FunctionExercise:
    """Bytes of K and V that each rank keeps, where the heads can be divided."""
    calls: list[tuple] = []
    shown: list[Callable] = [
        lambda kv_heads, size, kept: kept and 1 < size < kv_heads,
        lambda kv_heads, size, kept: kept and size > kv_heads > 1,
        lambda kv_heads, size, kept: not kept,
    ]
    while len(calls) < 50:
        group = rng.choice([1, 2, 4, 7, 8])
        num_kv_heads = rng.choice([1, 2, 4, 6, 8])
        head_dim = rng.choice([64, 80, 128])
        size = rng.choice([1, 2, 3, 4, 6, 7, 8, 12, 16, 32])
        num_heads = num_kv_heads * group
        kept = _solve_kv_bytes()(num_heads, num_kv_heads, head_dim, size)
        if len(calls) >= 3 or shown[len(calls)](num_kv_heads, size, kept):
            calls.append((num_heads, num_kv_heads, head_dim, size))
    return FunctionExercise(
        "Write kv_bytes(num_heads, num_kv_heads, head_dim, size): the bytes of K and V of one "
        "token in one layer that each of size tensor-parallel ranks keeps, 2 bytes a number; None "
        "if size ranks cannot share the heads. A rank has whole heads, as many as the others. "
        "Where there are fewer KV heads than ranks, each KV head is on several ranks, and on "
        "equally many.",
        "The query heads must be divisible by size. Of KV heads and size one must be divisible "
        "by the other.",
        _solve_kv_bytes,
        calls=calls,
        learnt="from as many ranks as KV heads on, more of them save no KV bytes.",
        mistakes=_KV_MISTAKES,
    )


def _solve_kv_bytes():
    def kv_bytes(num_heads, num_kv_heads, head_dim, size):
        if num_heads % size or (num_kv_heads % size and size % num_kv_heads):
            return None
        num_local = max(1, num_kv_heads // size)
        return 2 * num_local * head_dim * 2

    return kv_bytes


def _kv_wrongly(
    query_heads_divide: bool = True, kv_heads_divide: bool = True, repeated: bool = True,
    least: int = 1, per_head: int = 4, of_queries: bool = False, cut: bool = True,
    whole_heads: bool = True,
) -> Callable:  # fmt: skip
    """Make a ``kv_bytes``, perhaps with a mistake."""

    def kv_bytes(num_heads, num_kv_heads, head_dim, size):
        num_shared = num_heads if of_queries else num_kv_heads
        if query_heads_divide and num_heads % size:
            return None
        if kv_heads_divide and num_kv_heads % size and not (repeated and size % num_kv_heads == 0):
            return None
        if not whole_heads:
            return per_head * head_dim * num_shared // size
        return per_head * head_dim * max(least, num_shared // size if cut else num_shared)

    return kv_bytes


_KV_MISTAKES = {
    "K and V are kept, not one of them; and a number has 2 bytes.": _kv_wrongly(per_head=2),
    "these are numbers, and only of K: there is V, too, and a number has 2 bytes.": (
        _kv_wrongly(per_head=1)
    ),
    "a rank keeps K and V of its own heads, not of all.": _kv_wrongly(cut=False),
    "query heads keep nothing; only KV heads do.": _kv_wrongly(of_queries=True),
    "a rank has at least one KV head, whole.": _kv_wrongly(least=0),
    "heads are not cut: a rank has at least one KV head, whole.": _kv_wrongly(whole_heads=False),
    "a KV head may be on several ranks.": _kv_wrongly(repeated=False),
    "size must divide the query heads.": _kv_wrongly(query_heads_divide=False),
    "of the KV heads and size one must divide the other.": _kv_wrongly(kv_heads_divide=False),
}


# -- design: where more ranks bring nothing --------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def floor(rng: Random) -> Exercise:
    """The time that no number of ranks gets below, read from a table."""
    while True:
        least = rng.randint(12, 45)
        weights = 8 * rng.randint(6, 30)
        if weights // 2 > least + 3 and weights // 8 < least - 2 and weights // 4 != least:
            break
    token_ms = {n: max(weights // n, least) for n in (1, 2, 4, 8)}
    return Exercise(
        _check_floor,
        "Halve the first time again and again, and look where the table stops to do so.",
        _solve_floor,
        "A large model writes for one user. token_ms has the milliseconds of a step by "
        "tensor_parallel_size. The GPUs' part of a step is divided by the number of ranks; the "
        "CPU's part, to plan a step and to start its kernels, is not, and the longer of the two "
        "decides. (1) How long is the CPU's part? (2) Which is the smallest size with the "
        "shortest step? (3) How many milliseconds would a step take with 8 ranks if the CPU's "
        "part took no time? Answer with a triple.",
        {"token_ms": token_ms},
    )


def _solve_floor(token_ms):
    least = min(token_ms.values())
    smallest = min(size for size, ms in token_ms.items() if ms == least)
    return least, smallest, token_ms[1] // 8


def _check_floor(answer, token_ms) -> str:
    cpu, size, hidden = whole_numbers(answer, ("CPU's part", "size", "milliseconds without it"))
    right = _solve_floor(token_ms)
    compare(
        cpu,
        right[0],
        {
            "CPU's part: that is the GPU's on one rank.": token_ms[1],
            "CPU's part: that is what the GPUs would take with 8 ranks.": right[2],
            "CPU's part: the longer of the two decides; they are not added.": right[0] - right[2],
        },
        f"CPU's part: not {cpu}. With enough ranks only the CPU's part is seen.",
        f"CPU's part: it is {right[0]} ms.",
    )
    compare(
        size,
        right[1],
        {
            f"size: with {right[1]} ranks the step is as short.": size if size > right[1] else None,
            "size: more ranks still make it shorter.": size if size in token_ms else None,
        },
        f"size: {size} is not in the table.",
    )
    compare(
        hidden,
        right[2],
        {
            "milliseconds without it: the CPU's part is what that time is.": right[0],
            "milliseconds without it: that is with 1 rank.": token_ms[1],
            "milliseconds without it: a time at the CPU's part says nothing of the GPUs; begin "
            "with 1 rank.": token_ms[4] // 2,
        },
        f"milliseconds without it: not {hidden}. Divide the GPUs' part on one rank.",
        f"milliseconds without it: {right[2]}.",
    )
    return f"with 8 ranks the GPUs wait for the CPU {1 - right[2] / right[0]:.0%} of the time."
