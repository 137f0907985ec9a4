"""Labs of notebook 10: a sum through a block table, the softmax of a row."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.kernel_runs import NAN, check_kernel, require_triton
from minivllm.course.grading.function_lab import FunctionLab

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


def check_table_sum(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(seq_len: int):
        cache = torch.full((9, 4), NAN)
        blocks = (torch.randperm(8, generator=generator) + 1)[: -(-seq_len // 4)]
        values = torch.randn(seq_len, generator=generator)
        for position, value in enumerate(values):
            cache[blocks[position // 4], position % 4] = value
        table = blocks.to(torch.int32)

        def launch(kernel):
            out = torch.full((1,), NAN)
            kernel[(1,)](out, cache, table, seq_len, BLOCK_SIZE=4)
            return out

        return f"{seq_len} tokens in blocks {table.tolist()}", launch, values.sum()[None]

    runs = check_kernel(function, map(run, (1, 4, 5, 12, 30)))
    return f"equal to torch for {runs} sequences, and no other slot was read"


def check_row_softmax(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(case: tuple[int, float]):
        num_columns, size = case
        x = torch.full((3, 20), NAN)
        x[:, :num_columns] = size * torch.randn(3, num_columns, generator=generator)
        right = torch.full((3, 20), NAN)
        right[:, :num_columns] = x[:, :num_columns].softmax(1)

        def launch(kernel):
            out = torch.full((3, 20), NAN)
            kernel[(3,)](out, x, num_columns, 20, BLOCK=16)
            return out

        return f"3 rows of {num_columns} scores up to {size:g}", launch, right

    cases = ((1, 1.0), (5, 1.0), (16, 1.0), (13, 200.0))
    return f"equal to torch in {check_kernel(function, map(run, cases))} runs"


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
