"""Lab of notebook 10: the heart of an attention kernel; its solution is in ``kernel_harness``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from minivllm.course.ch10.needs_triton import require_triton
from minivllm.course.grading.function_lab import FunctionLab, call
from minivllm.course.grading.run import Fault


def my_online_softmax(m_i, l_i, acc, scores, value):
    """One tile of the online softmax, inside a Triton kernel: put @triton.jit above this function.

    Args:
        m_i: [BLOCK_M], the largest score so far; -inf before the first tile.
        l_i: [BLOCK_M], the sum of exp(score - m_i) so far.
        acc: [BLOCK_M, HEAD_DIM_PADDED], the sum of exp(score - m_i) * value so far.
        scores: [BLOCK_M, BLOCK_N], of this tile; -inf where a row may not look (a whole tile, too).
        value: [BLOCK_N, HEAD_DIM_PADDED], V of this tile.

    You have tl.maximum, tl.max(x, 1), tl.sum(x, 1), tl.exp, tl.where and tl.dot(a, b).

    Returns: m_i, l_i and acc with this tile in them.
    """
    raise NotImplementedError


# name, tokens, window, how large the keys grow
WORLDS = [
    ("one tile", 13, 99, 1.0),
    ("two tiles", 30, 99, 1.0),
    ("scores that grow", 40, 99, 3.0),
    ("scores beyond what exp can hold", 40, 99, 30.0),
    ("a window that hides the whole first tile", 40, 5, 1.0),
]
NUM_RUNS = len(WORLDS)


def check_online_softmax(function: Callable, seed: int) -> str:
    num_runs = 0
    for name, fault in run_kernel(function, seed):
        if fault is not None:
            raise Fault(f"{name}: {fault}")
        num_runs += 1
    return f"equal to a softmax over all scores at once, in {num_runs} runs of a Triton kernel"


def run_kernel(function: Callable, seed: int) -> Iterator[tuple[str, str | None]]:
    """Name of each run of a kernel with this part in it, and what is wrong with its output."""
    require_triton()
    import torch

    from minivllm.course.ch10 import kernel_harness
    from minivllm.course.ch10.attention_mistakes import mistakes
    from minivllm.course.ch10.kernel_runs import bounded, check_arguments, is_close

    check_arguments(function, my_online_softmax)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(16, 16, generator=generator)
    table = torch.tensor([5, 2, 7, 1, 8, 3, 6, 4, 9, 10], dtype=torch.int32)
    slots = [int(table[p // 4]) * 4 + p % 4 for p in range(40)]
    for name, seq_len, window, sharp in WORLDS:
        keys, values = torch.randn(2, 11, 4, 16, generator=generator)
        keys.flatten(0, 1)[slots] *= torch.linspace(0.2, sharp, 40)[:, None]
        seen = slots[max(0, seq_len - window) : seq_len]
        right = (query @ keys.flatten(0, 1)[seen].T).softmax(-1) @ values.flatten(0, 1)[seen]
        with bounded():
            got = call(kernel_harness.attend, function, query, keys, values, table, seq_len, window)
        if is_close(got, right).all():
            yield name, None
            continue
        if got.isnan().any() and window < seq_len:
            yield name, "some rows are NaN; -inf less -inf is NaN, in m_new and in alpha"
            continue
        scores = query @ keys.flatten(0, 1)[slots[:seq_len]].T
        wrong = mistakes(scores, values.flatten(0, 1)[slots[:seq_len]], tile=16)
        told = f"off by up to {float((got - right).abs().max()):.2g}"
        known = (why for why, mistaken in wrong.items() if is_close(got, mistaken).all())
        yield name, "; ".join([told, *islice(known, 1)])


LAB = FunctionLab(
    "10",
    "Write the heart of an attention kernel, in Triton.",
    "What was summed under the old maximum is multiplied by exp(old - new); think of -inf - -inf.",
    difficulty=4, minutes=30, stub=my_online_softmax, check=check_online_softmax,
    solution_module="minivllm.course.ch10.kernel_harness",
)  # fmt: skip
