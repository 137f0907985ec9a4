"""Exercises of notebook A1: a ridge, what attention does with a byte, tokens per second at most."""

from __future__ import annotations

from random import Random

from minivllm.lab.exercises.answers import NotYet, compare, whole_number, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded
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
        "A GPU has these peaks, and weights of so many bytes each. How many operations per byte "
        "are at its ridge? And from which batch on is a decode step bound by arithmetic, if its "
        "contexts are so short that K and V do not count? Answer with a pair (ridge, batch).",
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
    if batch < enough:
        raise NotYet(
            f"batch: with {batch} there are {2 * batch} operations for the {bytes_per_weight} "
            f"bytes of a weight, and {right} for each byte could be done."
        )
    if batch == 2 * enough:
        raise NotYet("batch: a product and a sum are two operations, so half of it is enough.")
    if batch > enough:
        raise NotYet(f"batch: {batch} is bound by arithmetic, and {batch - 1} would be, too.")
    return f"weights of half as many bytes would get there with {-(-enough // 2)} sequences."


# -- stretch: what attention does with a byte --------------------------------------------------


@seeded(difficulty=3, minutes=10)
def attention(rng: Random) -> Exercise:
    """Operations and bytes of one layer's decode attention, with grouped heads."""
    num_kv_heads = rng.choice([1, 2, 4, 8])
    return Exercise(
        _check_attention,
        "For each query head: a dot product with each key, and as much again for the values. K and "
        "V are read once for all query heads of a group.",
        _solve_attention,
        "One layer's attention of a decode step, for batch sequences of context tokens each: how "
        "many operations (products and sums) are its scores and weighted values, and how many "
        "bytes of K and V are read? Answer with a pair (operations, bytes).",
        {
            "batch": rng.randint(1, 64),
            "context": rng.randrange(256, 8193, 256),
            "num_heads": num_kv_heads * rng.randint(2, 16),
            "num_kv_heads": num_kv_heads,
            "head_dim": rng.choice([64, 80, 96, 128]),
            "bytes_per_number": rng.choice([1, 2, 4]),
        },
    )


def _solve_attention(batch, context, num_heads, num_kv_heads, head_dim, bytes_per_number):
    operations = batch * num_heads * context * (2 * head_dim + 2 * head_dim)
    return operations, batch * num_kv_heads * context * 2 * head_dim * bytes_per_number


def _check_attention(answer, **given) -> str:
    operations, num_bytes = whole_numbers(answer, ("operations", "bytes"))
    right, read = _solve_attention(**given)
    group = given["num_heads"] // given["num_kv_heads"]
    own = f"operations: every one of the {given['num_heads']} query heads has its own."
    half = "operations: this is half of it. A product and a sum are two, for keys and values."
    wrong = f"operations: a query head needs 4 * head_dim for a token, not {operations}."
    compare(operations, right, {own: right // group, half: right // 2}, wrong)
    mistakes = {
        f"bytes: {group} query heads share a KV head, and it is read once for them.": read * group,
        "bytes: this is half of it. K is read, and V as well.": read // 2,
    }
    wrong = "bytes: batch * context tokens, K and V of each, of num_kv_heads * head_dim numbers; "
    compare(num_bytes, read, mistakes, f"{wrong}that is not {num_bytes}.")
    size = given["bytes_per_number"]
    return (
        f"{2 * group / size:g} operations per byte: 2 * {group} query heads of a group / {size} "
        "bytes. Batch, context and head size have cancelled out."
    )


# -- design: tokens per second, at most --------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def at_most(rng: Random) -> Exercise:
    """How fast can Llama-8B decode on this GPU?"""
    model = MODELS["llama-8b"]
    while True:
        gpu = HARDWARE[rng.choice(["a100", "h100", "h200"])]
        batch, context = rng.choice([8, 32, 64, 128, 256, 512]), 2 ** rng.randint(6, 13)
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
    answer, right = whole_number(answer), _solve_at_most(**given)

    gpu = HARDWARE[given["gpu"].lower()]
    model, batch, context = MODELS["llama-8b"], given["batch"], given["context"]
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
    where = "above the roof" if answer > right else "below the roof; more is possible"
    compare(answer, right, mistakes, f"{answer:,} tokens/s are {where}.", same=_near)
    return (
        f"bound by {bound}: weights are read in {1e3 * weight_seconds:.2f} ms, K and V in "
        f"{1e3 * kv_seconds:.2f} ms, and computing takes {1e3 * arithmetic:.2f} ms."
    )
