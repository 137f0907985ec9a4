"""Exercises of notebook 13: bytes and blocks, the longest sequences, a GPU for a promise."""

from __future__ import annotations

from random import Random

from minivllm.config.kv_cache_size import kv_bytes_per_token
from minivllm.course.asking.answers import NotYet, compare, whole_number, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes and blocks --------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def blocks(rng: Random) -> Exercise:
    """Bytes of a token, and number of blocks that fit."""
    kv_heads = rng.choice([2, 4, 8])
    return Exercise(
        _check_blocks,
        "K and V, in every layer, of every KV head. A block is block_size tokens, and no block is "
        "cut in two.",
        _solve_blocks,
        "A model has this shape, and its KV cache may take this much memory. How many bytes does "
        "one token take, and how many whole blocks fit? Answer with a pair (bytes, blocks).",
        {
            "num_layers": rng.randrange(16, 81, 4),
            "num_heads": kv_heads * rng.randint(2, 8),
            "num_kv_heads": kv_heads,
            "head_dim": rng.choice([64, 80, 96, 128]),
            "bytes_per_number": rng.choice([2, 4]),
            "block_size": rng.choice([8, 16, 32]),
            "kv_cache_gib": rng.randint(3, 60),
        },
    )


def _solve_blocks(
    num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number, block_size, kv_cache_gib
):
    per_token = 2 * num_layers * num_kv_heads * head_dim * bytes_per_number
    return per_token, kv_cache_gib * 2**30 // (per_token * block_size)


def _check_blocks(
    answer, num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number, block_size,
    kv_cache_gib,
) -> str:  # fmt: skip
    per_token, num_blocks = whole_numbers(answer, ("bytes", "blocks"))
    right = kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number)
    half = "this is half of it: K and V are both kept, and a number takes"
    mistakes = {
        f"the {num_heads} query heads keep nothing; {num_kv_heads} KV heads do.": (
            right // num_kv_heads * num_heads
        ),
        f"{half} {bytes_per_number} bytes.": right // 2,
        f"this is one layer; there are {num_layers}.": right // num_layers,
        f"this many numbers; each takes {bytes_per_number} bytes.": right // bytes_per_number,
    }
    wrong = f"a token takes 2 * {num_layers} * {num_kv_heads} * {head_dim} numbers of "
    wrong += f"{bytes_per_number} bytes, which is not {per_token}."
    compare(per_token, right, mistakes, wrong)
    size = right * block_size
    room = kv_cache_gib * 2**30
    mistakes = {
        f"{num_blocks} tokens fit; a block has {block_size} of them.": room // right,
        "a GiB is 2**30 bytes.": kv_cache_gib * 10**9 // size,
        f"{num_blocks} blocks fit, and one more would, too; is block 0 in the question?": (
            room // size - 1
        ),
        "part of a block cannot be used: round down.": room // size + 1,
        "a block is block_size tokens: divide by their bytes.": room // right * block_size,
    }
    wrong = f"{num_blocks} blocks of {size:,} bytes are more than {room:,} bytes."
    if num_blocks * size <= room:
        wrong = f"{num_blocks} blocks fit, and one more would, too."
    compare(num_blocks, room // size, mistakes, wrong)
    mha = num_heads // num_kv_heads
    return f"with a KV head for each query head there would be {mha} times fewer."


# -- stretch: the longest sequences ------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def longest(rng: Random) -> Exercise:
    """The largest max_model_len that starts, and the largest that keeps a promise."""
    calls = [
        (rng.randint(200, 4000), rng.choice([8, 16, 32]), rng.randint(3, 24)) for _ in range(40)
    ]
    return FunctionExercise(
        "A pool has num_blocks blocks, the null block among them. What is the largest "
        "max_model_len with which the engine starts, and the largest one with which it logs a "
        "maximum concurrency of at least concurrency? Write longest(num_blocks, block_size, "
        "concurrency); it returns a pair (starts, concurrent).",
        "One of the blocks is the null block. The last token of a sequence is sampled, and its K "
        "and V are never read.",
        _solve_longest,
        calls=calls,
        learnt="an engine that starts with the first number serves one such sequence at a time.",
        mistakes={
            "starts: block 0 is the null block, and holds no token.": lambda blocks, size, c: (
                blocks * size + 1,
                (blocks - 1) * size // c,
            ),
            "block 0 is the null block, and holds no token.": lambda blocks, size, c: (
                blocks * size,
                blocks * size // c,
            ),
            "concurrent: block 0 is the null block, and holds no token.": (
                lambda blocks, size, c: ((blocks - 1) * size + 1, blocks * size // c)
            ),
            "starts: one token more has no K and V to keep.": lambda blocks, size, c: (
                (blocks - 1) * size,
                (blocks - 1) * size // c,
            ),
            "concurrent: the log divides all tokens of the pool by max_model_len; it does not "
            "leave out the last token.": lambda blocks, size, c: (
                (blocks - 1) * size + 1,
                (blocks - 1) * size // c + 1,
            ),
            "concurrent: the log's concurrency does not count whole blocks.": (
                lambda blocks, size, c: (
                    (blocks - 1) * size + 1,
                    (blocks - 1) // c * size,
                )
            ),
            "these are blocks; a block holds block_size tokens.": lambda blocks, size, c: (
                blocks - 1,
                (blocks - 1) // c,
            ),
        },
    )


def _solve_longest():
    def longest(num_blocks, block_size, concurrency):
        capacity = (num_blocks - 1) * block_size  # block 0 is the null block
        return capacity + 1, capacity // concurrency

    return longest


# -- design: a GPU for a promise ---------------------------------------------------------------

BUDGETS = (2048, 4096, 8192, 16384)


@seeded(difficulty=4, minutes=15)
def gpu(rng: Random) -> Exercise:
    """The cheapest GPU for a number of chats at once, and the largest steps on it."""
    while True:
        given = {
            "gpus": {"S": (24, 0.8), "M": (48, 1.7), "L": (80, 2.9), "XL": (141, 4.4)},
            "gpu_memory_utilization": 0.9,
            "weights_gib": rng.choice([5.8, 13.5, 14.2, 15.0, 27.5]),
            "activation_kib_per_token": rng.choice([136, 168, 320, 480]),
            "kv_kib_per_token": rng.choice([56, 96, 128, 192]),
            "max_model_len": rng.choice([2048, 4096, 8192, 16384]),
            "chats": rng.randint(8, 60),
        }
        fits = _fits(**given)
        if fits and fits[0][0] != "S" and fits[0][1] > BUDGETS[0] and fits[-1][0] != fits[0][0]:
            return Exercise(
                _check_gpu,
                "Take the promised chats first: their K and V, the weights, and what is left for a "
                "step. A step of t tokens needs t times the activations of one.",
                _solve_gpu,
                "These GPUs, with (GiB, price of an hour), are for hire. The engine must log a "
                "maximum concurrency of at least chats, each of max_model_len tokens. Blocks are "
                "so small that rounding does not matter. Which is the cheapest GPU that does it, "
                f"and what is the largest max_num_batched_tokens among {BUDGETS} on it? Answer "
                "with a pair like ('S', 2048).",
                given,
            )


def _concurrency(name: str, budget: int, given: dict) -> float:
    """Maximum concurrency in the log; below 0 if not even the weights and a step fit."""
    usable = given["gpus"][name][0] * given["gpu_memory_utilization"] - given["weights_gib"]
    left_kib = usable * 2**20 - given["activation_kib_per_token"] * budget
    return left_kib / given["kv_kib_per_token"] / given["max_model_len"]


def _fits(**given) -> list[tuple[str, int]]:
    """All that keep the promise: the cheapest GPU first, on each the largest budget first."""
    choices = [(name, budget) for name in given["gpus"] for budget in BUDGETS[::-1]]
    return [choice for choice in choices if _concurrency(*choice, given) >= given["chats"]]


def _solve_gpu(
    gpus, gpu_memory_utilization, weights_gib, activation_kib_per_token, kv_kib_per_token,
    max_model_len, chats,
):  # fmt: skip
    kv_gib = chats * max_model_len * kv_kib_per_token / 2**20
    for name, (gib, _) in gpus.items():  # the cheapest first
        for budget in (16384, 8192, 4096, 2048):
            step_gib = budget * activation_kib_per_token / 2**20
            if weights_gib + step_gib + kv_gib <= gib * gpu_memory_utilization:
                return name, budget


def _check_gpu(answer, **given) -> str:
    if not isinstance(answer, (list, tuple)) or len(answer) != 2 or answer[0] not in given["gpus"]:
        raise NotYet("give a pair like ('S', 2048).")
    name = answer[0]
    budget = whole_number(answer[1])
    if budget not in BUDGETS:
        raise NotYet(f"max_num_batched_tokens is one of {', '.join(map(str, BUDGETS))}.")
    fits = _fits(**given)
    if name not in dict(fits):
        most = max(0.0, _concurrency(name, BUDGETS[0], given))
        raise NotYet(
            f"{name} is too small: {most:.2f}x with steps of {BUDGETS[0]} tokens, and "
            f"{given['chats']} chats are promised. Of its memory, weights and a step's activations "
            "go first."
        )
    if name != fits[0][0]:
        raise NotYet(f"{name} keeps the promise, but a cheaper one does, too.")
    if (name, budget) not in fits:
        most = max(0.0, _concurrency(name, budget, given))
        raise NotYet(f"steps of {budget} tokens leave {name} room for {most:.2f}x only.")
    if (name, budget) != fits[0]:
        raise NotYet(f"{name} keeps the promise with steps of {2 * budget} tokens, too.")
    return f"{name} holds {_concurrency(name, budget, given):.2f} such chats."
