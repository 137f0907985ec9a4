"""Exercises of notebook 01: bytes per token, work with and without a cache, a model for a GPU."""

from __future__ import annotations

import random

from minivllm.lab.exercises.answers import NotYet
from minivllm.lab.exercises.exercise import Exercise

QWEN_7B = {"num_layers": 28, "num_heads": 28, "num_kv_heads": 4, "head_dim": 128, "bytes": 2}
GPU_GIB, WEIGHTS_GIB, CHATS, CHAT_TOKENS = 80, 15, 100, 8192


def _check_bytes(answer) -> str:
    c = QWEN_7B
    right = 2 * c["num_layers"] * c["num_kv_heads"] * c["head_dim"] * c["bytes"]
    wrong = {
        right // 2: "that is K or V, or numbers and not bytes; both are kept, 2 bytes each.",
        right * 7: "that counts the 28 query heads; only the 4 K and V heads are kept.",
        right // 28: "that is one layer.",
    }
    if answer != right:
        raise NotYet(wrong.get(answer, f"{answer} is not it; write down the shape of K first."))
    return f"{right:,} bytes: a chat of 8,192 tokens fills {right * 8192 / 2**30:.2f} GiB."


def _solve_bytes() -> int:
    return 2 * 28 * 4 * 128 * 2  # K and V, layers, KV heads, head size, bytes per number


def _check_work(answer) -> str:
    rng = random.Random(0)
    for _ in range(50):
        p, n = rng.randint(1, 99), rng.randint(2, 99)
        k = rng.randint(1, n - 1)
        try:
            got = answer(p, n, k)
        except Exception as error:
            raise NotYet(f"work({p}, {n}, {k}) raised {error!r}.") from error
        right = (p + k - 1) + (p + n - 1)
        if got != right and got == right - (k - 1):
            raise NotYet("it had computed some of its own tokens before the loss, too.")
        if got != right:
            raise NotYet(f"work({p}, {n}, {k}) should be {right}, yours says {got}.")
    return "this is what a preemption costs: notebook 06."


def _solve_work():
    def work(p: int, n: int, k: int) -> int:
        before = p + k - 1  # the k-th token was sampled and not yet computed
        after = p + n - 1  # prompt and output again, but for the last token
        return before + after

    return work


def _check_design(answer) -> str:
    try:
        kv_heads, bytes_per_number = answer
    except (TypeError, ValueError):
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
    "Qwen2.5-7B has 28 layers, 28 query heads and 4 KV heads of size 128, in bfloat16. How many "
    "bytes does one token leave in the KV cache?",
)
work = Exercise(
    _check_work,
    "Count the two parts by themselves. Which token had been sampled, but not computed?",
    _solve_work,
    "A request of p prompt tokens is to write n tokens. After k of them (0 < k < n) it loses its "
    "cache and has to begin again, keeping the tokens it has written. Write a function "
    "work(p, n, k): how many tokens go through the model in all?",
)
design = Exercise(
    _check_design,
    "Start from the bytes that one token may have: room / (100 * 8192).",
    _solve_design,
    f"A GPU of {GPU_GIB} GiB holds {WEIGHTS_GIB} GiB of weights and should serve {CHATS} chats of "
    f"{CHAT_TOKENS:,} tokens at once. The model has 32 layers and 32 query heads of size 128. "
    "Choose (KV heads, bytes per number) as generous as the memory allows: twice as much must not "
    "fit. KV heads divide the 32 query heads; a number takes 1, 2 or 4 bytes.",
)
