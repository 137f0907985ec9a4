"""Exercises of notebook 01: bytes per token, work with and without a cache, a model for a GPU."""

from __future__ import annotations

import random

from minivllm.exercises.exercise import Exercise, NotYet

LLAMA_8B = {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "bytes": 2}
GPU_GIB, WEIGHTS_GIB, CHATS, CHAT_TOKENS = 80, 15, 100, 8192


def _check_bytes(answer) -> str:
    c = LLAMA_8B
    right = 2 * c["num_layers"] * c["num_kv_heads"] * c["head_dim"] * c["bytes"]
    wrong = {
        right // 2: "that is K or V; both are kept.",
        right * 4: "that counts the 32 query heads; only the 8 K and V heads are kept.",
        right // 32: "that is one layer.",
        right // 2 * 4: "that is all 32 heads, and K only.",
    }
    if answer != right:
        raise NotYet(wrong.get(answer, f"{answer:,} is not it; write down the shape of K first."))
    return f"{right:,} bytes: a chat of 8,192 tokens fills {right * 8192 / 2**30:.0f} GiB."


def _solve_bytes() -> int:
    return 2 * 32 * 8 * 128 * 2  # K and V, layers, KV heads, head size, bytes per number


def _check_work(answer) -> str:
    rng = random.Random(0)
    for _ in range(50):
        p, n, cached = rng.randint(1, 99), rng.randint(1, 99), rng.random() < 0.5
        try:
            got = answer(p, n, cached)
        except Exception as error:
            raise NotYet(f"work({p}, {n}, {cached}) raised {error!r}.") from error
        right = p + n - 1 if cached else sum(range(p, p + n))
        if got != right:
            raise NotYet(f"work({p}, {n}, {cached}) should be {right}, yours says {got}.")
    return "linear with the cache, quadratic without."


def _solve_work():
    def work(num_prompt: int, num_output: int, cached: bool) -> int:
        if cached:  # each token is computed once, and the last one never
            return num_prompt + num_output - 1
        return sum(range(num_prompt, num_prompt + num_output))

    return work


def _check_design(answer) -> str:
    try:
        kv_heads, bytes_per_number = answer
    except TypeError:
        raise NotYet("give a pair (KV heads, bytes per number).") from None
    if kv_heads not in (1, 2, 4, 8, 16, 32) or bytes_per_number not in (1, 2, 4):
        raise NotYet("KV heads must divide 32, and a number takes 1, 2 or 4 bytes.")
    room = (GPU_GIB - WEIGHTS_GIB) * 2**30
    needed = CHATS * CHAT_TOKENS * 2 * 32 * kv_heads * 128 * bytes_per_number
    if needed > room:
        raise NotYet(f"that needs {needed / 2**30:.0f} GiB, and {room / 2**30:.0f} are left.")
    if needed * 2 <= room:
        raise NotYet(f"{needed / 2**30:.0f} GiB fit, but you could afford twice as much quality.")
    return f"{needed / 2**30:.0f} of {room / 2**30:.0f} GiB; others trade heads against precision."


def _solve_design() -> tuple[int, int]:
    return 4, 2  # or 8 heads in one byte


bytes_per_token = Exercise(
    _check_bytes,
    "How many numbers are K and V of one token in one layer?",
    _solve_bytes,
)
work = Exercise(
    _check_work,
    "Without a cache, step i computes everything that is known by then.",
    _solve_work,
)
design = Exercise(
    _check_design,
    "Start from the bytes that one token may have: room / (100 * 8192).",
    _solve_design,
)
