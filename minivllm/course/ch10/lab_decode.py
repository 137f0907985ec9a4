"""Labs of notebook 10: decode attention, of one sequence and of a batch."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.needs_triton import require_triton
from minivllm.course.grading.function_lab import FunctionLab, Passed

SOLUTIONS = "minivllm.course.ch10.kernel_ladder"


def my_decode_one(
    out, query, key_cache, value_cache, block_table, seq_len, scale, BLOCK_SIZE, HEAD_DIM
):
    """Attend with one query to one sequence, through its block table; one head, one program.

    Specification: keys, values = the rows of key_cache and value_cache at the sequence's slots
                   out = torch.softmax(scale * keys @ query, 0) @ values

    query and out are [HEAD_DIM]; the caches are [num_blocks, BLOCK_SIZE, HEAD_DIM]. Put @triton.jit
    above; BLOCK_SIZE and HEAD_DIM are tl.constexpr. Go block by block with an online softmax: m_i,
    l_i and acc of the blocks so far. Every slot without a token of the sequence is NaN.
    """
    raise NotImplementedError


def my_decode(
    out, query, key_cache, value_cache, block_tables, seq_lens, scale, table_width,
    NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM,
):  # fmt: skip
    """Compute the decode attention of a batch: a program per sequence (0) and query head (1).

    query and out are [num_seqs, NUM_HEADS, HEAD_DIM]; the caches are [num_blocks, BLOCK_SIZE,
    NUM_KV_HEADS, HEAD_DIM]; block_tables is int32 [num_seqs, table_width], seq_lens int32
    [num_seqs]. Query head h reads KV head h // (NUM_HEADS // NUM_KV_HEADS). The names in capitals
    are tl.constexpr. For each sequence and head it is my_decode_one. Slots without a token are NaN.
    """
    raise NotImplementedError


def check_decode_one(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.decode_runs import decode_one_runs
    from minivllm.course.ch10.kernel_runs import check_kernel

    return check_kernel(function, my_decode_one, decode_one_runs(seed), "sequences")


def check_decode(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.decode_runs import decode_runs
    from minivllm.course.ch10.kernel_runs import check_kernel

    return check_kernel(function, my_decode, decode_runs(seed), "batches")


DECODE_ONE = FunctionLab(
    "10", "Write the decode attention of one sequence.",
    "Put the slots of table_sum and the rule of online_softmax into one loop over the blocks.",
    difficulty=4, minutes=40, stub=my_decode_one, check=check_decode_one,
    solution_module=SOLUTIONS,
)  # fmt: skip
DECODE = FunctionLab(
    "10", "Write the whole decode kernel.",
    "decode_one, with three more offsets: the row of the query, of the table, and the KV head.",
    difficulty=5, minutes=40, stub=my_decode, check=check_decode,
    solution_module=SOLUTIONS,
)  # fmt: skip
