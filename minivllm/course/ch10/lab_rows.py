"""Labs of notebook 10: a sum through a block table, the softmax of a row."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.needs_triton import require_triton
from minivllm.course.grading.function_lab import FunctionLab, Passed

SOLUTIONS = "minivllm.course.ch10.kernel_ladder"


def my_table_sum(out, cache, block_table, seq_len, BLOCK_SIZE):
    """Sum a sequence's numbers through its block table; @triton.jit above, BLOCK_SIZE constexpr.

    Specification: out[0] = sum(cache[block_table[p // BLOCK_SIZE], p % BLOCK_SIZE]
                                for p in range(seq_len))

    cache is [num_blocks, BLOCK_SIZE] of float32, block_table int32. There is one program. All slots
    that hold no token of the sequence are NaN, and so is what is behind the table's last entry.
    You have range(0, number of blocks), tl.zeros([BLOCK_SIZE], tl.float32) and tl.sum(x, 0).
    """
    raise NotImplementedError


def my_row_softmax(out, x, num_columns, stride, BLOCK):
    """Compute the softmax of each row; put @triton.jit above, and write BLOCK: tl.constexpr.

    Specification: out[row, :num_columns] = torch.softmax(x[row, :num_columns], 0)

    A program per row; row r begins at r * stride. BLOCK is a power of two, at least num_columns;
    what is behind num_columns is NaN. Some scores are above 100: exp of them is infinite, so
    subtract the largest first. You have tl.max(x, 0), tl.exp and tl.sum(x, 0).
    """
    raise NotImplementedError


def check_table_sum(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.kernel_runs import check_kernel
    from minivllm.course.ch10.row_runs import table_sum_runs

    what = "sequences, and no other slot was read"
    return check_kernel(function, my_table_sum, table_sum_runs(seed), what)


def check_row_softmax(function: Callable, seed: int) -> Passed:
    require_triton()
    from minivllm.course.ch10.kernel_runs import check_kernel
    from minivllm.course.ch10.row_runs import row_softmax_runs

    return check_kernel(function, my_row_softmax, row_softmax_runs(seed), "sets of rows")


TABLE_SUM = FunctionLab(
    "10", "Write a sum through a block table.",
    "One pass per block: its id from the table, its slots from the id, a mask for the last one.",
    difficulty=2, minutes=15, stub=my_table_sum, check=check_table_sum,
    solution_module=SOLUTIONS,
)  # fmt: skip
ROW_SOFTMAX = FunctionLab(
    "10", "Write the softmax of a row.",
    "A column that does not exist has the score -inf: it adds nothing to sum and maximum.",
    difficulty=2, minutes=15, stub=my_row_softmax, check=check_row_softmax,
    solution_module=SOLUTIONS,
)  # fmt: skip
