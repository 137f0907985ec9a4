"""Exercises of notebook 01: bytes per token, work with and without a cache, a model for a GPU."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_number, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes per token ---------------------------------------------------------------------


@seeded(difficulty=1, minutes=5)
def bytes_per_token(rng: Random) -> Exercise:
    """How many bytes does one token leave in the KV cache?"""
    num_kv_heads = rng.choice([2, 4, 8])
    return Exercise(
        _check_bytes,
        "How many numbers are K and V of one token in one layer?",
        _solve_bytes,
        "A model like Qwen's. How many bytes does one token leave in the KV cache?",
        {
            "num_layers": rng.randint(16, 48),
            "num_heads": num_kv_heads * rng.choice([4, 5, 7]),
            "num_kv_heads": num_kv_heads,
            "head_dim": rng.choice([64, 96, 128]),
            "bytes_per_number": 2,
        },
    )


def _check_bytes(answer, num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number) -> str:
    answer = whole_number(answer)
    right = _solve_bytes(num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number)
    heads = f"that counts the {num_heads} query heads; only the {num_kv_heads} K and V heads"
    mistakes = {
        "that is K or V, or numbers and not bytes; both are kept, 2 bytes each.": right // 2,
        f"{heads} are kept.": right // num_kv_heads * num_heads,
        "that is one layer.": right // num_layers,
        "that is one head; K and V are kept for each KV head.": right // num_kv_heads,
        "that is one number for each head; a key has head_dim of them.": right // head_dim,
        "these are bits; a byte has 8.": 8 * right,
        "that is one layer, and K or V.": right // num_layers // 2,
    }
    shape = f"K of one layer is {num_kv_heads} heads of {head_dim} numbers, and V is as large."
    compare(answer, right, mistakes, f"{answer} is not it. {shape}")
    return f"{right:,} bytes: a chat of 8,192 tokens fills {right * 8192 / 2**30:.2f} GiB."


def _solve_bytes(num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number) -> int:
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number  # 2: K and V


# -- stretch: the work after a loss ------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def work(rng: Random) -> Exercise:
    """How many tokens go through the model if the cache is lost on the way?"""
    calls = []
    for _ in range(50):
        p = rng.randint(1, 99)
        n = rng.randint(2, 99)
        calls.append((p, n, rng.randint(1, n - 1)))
    return FunctionExercise(
        "A request of p prompt tokens is to write n tokens. After k of them (0 < k < n) it loses "
        "its cache and has to begin again, keeping the tokens it has written. Write a function "
        "work(p, n, k): how many tokens go through the model in all?",
        "Count the two parts by themselves. Which token had been sampled, but not computed?",
        _solve_work,
        calls=calls,
        learnt="this is what a preemption costs: notebook 06.",
        mistakes={
            "it had computed some of its own tokens before the loss, too.": (
                lambda p, n, k: 2 * p + n - 1
            ),
            "its own tokens have to be computed again, too.": lambda p, n, k: 2 * (p + k - 1),
            "that is a request that loses nothing.": lambda p, n, k: p + n - 1,
            "that is what comes after the loss only.": lambda p, n, k: p + n,
            "the k-th token was sampled and not yet computed when the cache was lost.": (
                lambda p, n, k: 2 * p + n + k - 1
            ),
            "a token that is sampled last is never computed: once before the loss, and once at "
            "the end.": lambda p, n, k: 2 * p + n + k,
        },
    )


def _solve_work():
    def work(p: int, n: int, k: int) -> int:
        before = p + k - 1  # the k-th token was sampled and not yet computed
        after = p + n - 1  # prompt and output again, but for the last token
        return before + after

    return work


# -- design: a model for a GPU -----------------------------------------------------------------


@seeded(difficulty=2, minutes=10)
def design(rng: Random) -> Exercise:
    """How many KV heads of how many bytes can a GPU afford?"""
    num_chats = 10 * rng.randint(4, 20)
    room = rng.randint(20, 70)
    return Exercise(
        _check_design,
        "Start from the bytes that one token may have: the room divided by all tokens.",
        _solve_design,
        "Beside its weights a GPU has room_gib GiB left. It should serve num_chats chats of "
        "chat_tokens tokens at once. Choose (KV heads, bytes per number) as generous as the "
        "memory allows: twice as much must not fit. KV heads divide the query heads; a number "
        "takes 1, 2 or 4 bytes.",
        {
            "room_gib": room,
            "num_chats": num_chats,
            "chat_tokens": rng.choice([4096, 8192]),
            "num_layers": 32,
            "num_heads": 32,
            "head_dim": 128,
        },
    )


def _check_design(answer, room_gib, num_chats, chat_tokens, num_layers, num_heads, head_dim) -> str:
    kv_heads, bytes_per_number = whole_numbers(answer, ("KV heads", "bytes per number"))
    if kv_heads not in (1, 2, 4, 8, 16, 32) or bytes_per_number not in (1, 2, 4):
        turned = kv_heads in (1, 2, 4) and bytes_per_number in (8, 16, 32)
        order = " The KV heads come first." * turned
        raise NotYet(f"KV heads must divide 32, and a number takes 1, 2 or 4 bytes.{order}")
    room = room_gib * 2**30
    needed = num_chats * chat_tokens * 2 * num_layers * kv_heads * head_dim * bytes_per_number
    if needed > room:
        half = " Half of it would fit." * (needed <= 2 * room)
        raise NotYet(f"that needs {needed / 2**30:.0f} GiB, and {room_gib} are left.{half}")
    if needed * 2 <= room:
        raise NotYet(f"{needed / 2**30:.0f} GiB fit, but you could afford twice as much quality.")
    return f"{needed / 2**30:.0f} of {room_gib} GiB; others trade heads against precision."


def _solve_design(
    room_gib, num_chats, chat_tokens, num_layers, num_heads, head_dim
) -> tuple[int, int]:
    per_byte_and_head = num_chats * chat_tokens * 2 * num_layers * head_dim
    product = 1
    while 2 * product * per_byte_and_head <= room_gib * 2**30:
        product *= 2
    return (product, 1) if product < 2 else (product // 2, 2)
