"""Exercises of notebook A1: a ridge, what attention does with a byte, tokens per second at most."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_number, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.lab.sim.cost import HARDWARE, MODELS

# -- core: a ridge, and the batch that reaches it ----------------------------------------------


@seeded(difficulty=2, minutes=5)
def ridge(rng: Random) -> Exercise:
    """The ridge of a GPU's roofline, and the number of decodes that reach it."""
    gb_per_s = rng.randrange(500, 8001, 100)
    return Exercise(
        _check_ridge,
        "At the ridge both take the same time. A decode step multiplies each weight with one "
        "number of each sequence and adds up, and reads each weight once.",
        _solve_ridge,
        "A GPU has these peaks, and a weight has bytes_per_weight bytes. How many operations per "
        "byte are at its ridge? And from which batch on is a decode step bound by arithmetic, if "
        "its contexts are so short that K and V do not count? Answer with a pair (ridge, batch).",
        {
            "gflop_per_s": gb_per_s * rng.randrange(20, 401, 2),
            "gb_per_s": gb_per_s,
            "bytes_per_weight": rng.choice([1, 2, 4]),
        },
    )


def _solve_ridge(gflop_per_s, gb_per_s, bytes_per_weight):
    at_ridge = gflop_per_s // gb_per_s
    # a batch does 2 * batch operations with the bytes of a weight
    return at_ridge, -(-at_ridge * bytes_per_weight // 2)


def _check_ridge(answer, gflop_per_s, gb_per_s, bytes_per_weight) -> str:
    at_ridge, batch = whole_numbers(answer, ("ridge", "batch"))
    right, enough = _solve_ridge(gflop_per_s, gb_per_s, bytes_per_weight)
    if at_ridge != right:
        raise NotYet(
            f"ridge: in the time of one byte it can do {gflop_per_s:,} / {gb_per_s:,} operations, "
            f"which is not {at_ridge}."
        )
    mistakes = {
        "a product and a sum are two operations, so half of it is enough.": (
            right * bytes_per_weight
        ),
        f"a weight has {bytes_per_weight} bytes.": -(-right // 2),
        "that is the ridge; a batch of one does 2 operations with a weight.": right,
        "round up: this batch is still bound by bandwidth.": right * bytes_per_weight // 2,
    }
    wrong = f"batch: {batch} is bound by arithmetic, and {batch - 1} would be, too."
    if batch < enough:
        wrong = (
            f"batch: with {batch} there are {2 * batch} operations for the {bytes_per_weight} "
            f"bytes of a weight, and {right} for each byte could be done."
        )
    compare(batch, enough, mistakes, wrong, at="batch: ")
    return f"weights of half as many bytes would get there with {-(-enough // 2)} sequences."


# -- stretch: what attention does with a byte --------------------------------------------------


@seeded(difficulty=3, minutes=10)
def attention(rng: Random) -> Exercise:
    """Operations and bytes of one layer's decode attention, with grouped heads."""
    return FunctionExercise(
        "One layer's attention of a decode step, for batch sequences of context tokens each: how "
        "many operations (products and sums) are its scores and weighted values, and how many "
        "bytes of K and V are read? Write attention(batch, context, num_heads, num_kv_heads, "
        "head_dim, bytes_per_number); it returns a pair (operations, bytes).",
        "For each query head: a dot product with each key, and as much again for the values. K and "
        "V are read once for all query heads of a group.",
        _solve_attention,
        calls=[_shape(rng) for _ in range(30)],
        learnt="operations per byte are 2 * the heads of a group / the bytes of a number: batch, "
        "context and head size have cancelled out.",
        mistakes={
            "operations: every one of the query heads has its own.": (
                lambda b, n, heads, kv_heads, dim, size: (
                    4 * b * kv_heads * n * dim,
                    2 * b * kv_heads * n * dim * size,
                )
            ),
            "operations: this is half of it. A product and a sum are two, for keys and values.": (
                lambda *shape: _part(shape, 0.5, 1)
            ),
            "operations: a product and a sum are two, both for keys and for values.": (
                lambda *shape: _part(shape, 0.25, 1)
            ),
            "bytes: the query heads of a group share a KV head, and it is read once for them.": (
                lambda *shape: _part(shape, 1, shape[2] // shape[3])
            ),
            "bytes: this is half of it. K is read, and V as well.": (
                lambda *shape: _part(shape, 1, 0.5)
            ),
            "bytes: these are numbers; each has bytes_per_number bytes.": (
                lambda *shape: _part(shape, 1, 1 / shape[5])
            ),
            "each sequence has K and V of its own: multiply by the batch.": (
                lambda *shape: _part(shape, 1 / shape[0], 1 / shape[0])
            ),
            "bytes: each sequence has K and V of its own.": (
                lambda *shape: _part(shape, 1, 1 / shape[0])
            ),
        },
    )


def _shape(rng: Random) -> tuple[int, ...]:
    num_kv_heads = rng.choice([1, 2, 4, 8])
    batch = rng.randint(1, 64)
    context = rng.randrange(256, 8193, 256)
    num_heads = num_kv_heads * rng.randint(2, 16)
    head_dim = rng.choice([64, 80, 96, 128])
    return batch, context, num_heads, num_kv_heads, head_dim, rng.choice([1, 2, 4])


def _part(shape: tuple[int, ...], of_operations: float, of_bytes: float) -> tuple[float, float]:
    operations, num_bytes = _solve_attention()(*shape)
    return operations * of_operations, num_bytes * of_bytes


def _solve_attention():
    def attention(batch, context, num_heads, num_kv_heads, head_dim, bytes_per_number):
        operations = batch * num_heads * context * (2 * head_dim + 2 * head_dim)
        return operations, batch * num_kv_heads * context * 2 * head_dim * bytes_per_number

    return attention


# -- design: tokens per second, at most --------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def at_most(rng: Random) -> Exercise:
    """How fast can Llama-8B decode on this GPU?"""
    model = MODELS["llama-8b"]
    while True:
        gpu = HARDWARE[rng.choice(["a100", "h100", "h200"])]
        batch = rng.choice([8, 32, 64, 128, 256, 512])
        context = 2 ** rng.randint(6, 13)
        context += rng.randrange(0, context, 4)
        num_kv_bytes = batch * context * model.kv_bytes_per_token
        if model.weight_bytes + num_kv_bytes <= 0.9 * gpu.memory_bytes:
            break
    return Exercise(
        _check_at_most,
        "Count a step's operations and its bytes. Each alone takes some time, and the longer one "
        "counts. How many tokens does a step give?",
        _solve_at_most,
        "Llama-8B in bfloat16 (two bytes a number) decodes batch sequences of context tokens each. "
        "By these data sheet's peaks, how many tokens per second at most, all sequences together? "
        "Each parameter is two operations a token. Give a whole number; 1 % off is no matter.",
        {
            "gpu": gpu.name.upper(),
            "tflop_per_s": round(gpu.flops_per_s / 1e12),
            "gb_per_s": round(gpu.bytes_per_s / 1e9),
            "num_params": round(model.num_params),
            "num_layers": model.num_layers,
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "batch": batch,
            "context": context,
        },
    )


def _solve_at_most(
    gpu, tflop_per_s, gb_per_s, num_params, num_layers, num_heads, num_kv_heads, head_dim,
    batch, context,
):  # fmt: skip
    tokens = batch * context  # that are looked at
    operations = 2 * num_params * batch + 4 * num_layers * num_heads * head_dim * tokens
    num_bytes = 2 * num_params + 2 * 2 * num_layers * num_kv_heads * head_dim * tokens
    seconds = max(operations / (tflop_per_s * 1e12), num_bytes / (gb_per_s * 1e9))
    return round(batch / seconds)


def _near(got: float, value: float) -> bool:
    return abs(got - value) <= 0.01 * value + 0.5


def _check_at_most(answer, **given) -> str:
    answer = whole_number(answer)
    right = _solve_at_most(**given)

    gpu = HARDWARE[given["gpu"].lower()]
    model = MODELS["llama-8b"]
    batch = given["batch"]
    context = given["context"]
    kv_seconds = batch * context * model.kv_bytes_per_token / gpu.bytes_per_s
    weight_seconds = model.weight_bytes / gpu.bytes_per_s
    step = model.step_work([(context - 1, 1)] * batch)
    arithmetic = step.flops / gpu.flops_per_s
    bound = "arithmetic" if arithmetic > weight_seconds + kv_seconds else "bandwidth"
    mistakes = {
        "this is one sequence's; all of them get a token in a step.": right / batch,
        "K and V are read, too, not only the weights.": batch / weight_seconds,
        "K and V are read for each KV head, not for each query head.": batch
        / (weight_seconds + model.num_heads // model.num_kv_heads * kv_seconds),
        "the weights are read once for the whole batch.": batch
        / (batch * weight_seconds + kv_seconds),
        "this is what arithmetic allows; here bytes take longer.": batch / arithmetic,
        "this is what bandwidth allows; here computing takes longer.": batch
        / (weight_seconds + kv_seconds),
        "moving and computing go on at the same time: take the longer, not their sum.": batch
        / (weight_seconds + kv_seconds + arithmetic),
    }
    took = f"{answer:,} tokens/s mean a step of {1e3 * batch / max(1, answer):.2f} ms"
    what = "compute all of it" if bound == "arithmetic" else "read all its bytes"
    wrong = f"{took}, longer than it takes to read all bytes and to compute; more is possible."
    if answer > right:
        wrong = f"{took}, above the roofline: too short to {what}."
    compare(answer, right, mistakes, wrong, same=_near)
    return (
        f"bound by {bound}: weights are read in {1e3 * weight_seconds:.2f} ms, K and V in "
        f"{1e3 * kv_seconds:.2f} ms, and computing takes {1e3 * arithmetic:.2f} ms."
    )
