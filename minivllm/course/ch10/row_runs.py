"""Runs of two kernels of notebook 10: a sum through a block table, and the softmax of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from minivllm.course.ch10.copy_runs import BEFORE, NAN
from minivllm.course.ch10.kernel_memory import Array, Program
from minivllm.course.ch10.kernel_runs import KernelRun
from minivllm.utils.math_utils import cdiv

BLOCK_SIZE = 4
NUM_BLOCKS = 9
ROWS = 3
STRIDE = 20
BLOCK = 16
LOG_2 = math.log(2)


def table_sum_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for seq_len in (1, 4, 5, 12, 30):
        num_blocks = cdiv(seq_len, BLOCK_SIZE)
        blocks = (torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1)[:num_blocks]
        values = torch.randn(seq_len, generator=generator)
        cache = torch.full((NUM_BLOCKS, BLOCK_SIZE), NAN)
        for position, value in enumerate(values):
            cache[blocks[position // BLOCK_SIZE], position % BLOCK_SIZE] = value
        last = (num_blocks - 1) * BLOCK_SIZE
        yield KernelRun(
            f"{seq_len} tokens in blocks {blocks.tolist()}",
            grid=(1,),
            arrays={
                "out": _single(),
                "cache": Array(cache, ~cache.isnan(), _why_no_token(blocks.tolist(), seq_len)),
                "block_table": _table(blocks),
            },
            numbers={"seq_len": seq_len, "BLOCK_SIZE": BLOCK_SIZE},
            right=values.sum()[None],
            drawn="cache",
            unit=BLOCK_SIZE,
            mistakes=partial(_sum_mistakes, values, last),
        )


def row_softmax_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for num_columns, size in ((1, 1.0), (5, 1.0), (16, 1.0), (13, 200.0)):
        there = (torch.arange(STRIDE) < num_columns).expand(ROWS, STRIDE)
        x = torch.full((ROWS, STRIDE), NAN)
        x[:, :num_columns] = size * torch.randn(ROWS, num_columns, generator=generator)
        x[:, num_columns // 2] = size
        before = torch.full((ROWS, STRIDE), BEFORE)
        yield KernelRun(
            f"3 rows of {num_columns} scores up to {size:g}",
            grid=(ROWS,),
            arrays={
                "out": _rows(before, there, num_columns, is_output=True),
                "x": _rows(x, there, num_columns),
            },
            numbers={"num_columns": num_columns, "stride": STRIDE, "BLOCK": BLOCK},
            right=_in_columns(x[:, :num_columns].softmax(1)),
            drawn="x",
            mistakes=partial(_softmax_mistakes, x[:, :num_columns]),
        )


def _sum_mistakes(values: torch.Tensor, last: int) -> dict[str, torch.Tensor]:
    found = {
        "that is the sum of the last block: add each block to those before": values[last:].sum(),
        "that is the first slot of each block": values[::BLOCK_SIZE].sum(),
        "that is the mean": values.mean(),
        "that is the largest one": values.max(),
    }
    return {why: mistaken[None] for why, mistaken in found.items()}


def _single() -> Array:
    return Array(
        torch.full((1,), BEFORE),
        torch.ones(1, dtype=torch.bool),
        why=lambda index: "out has one number",
        is_output=True,
    )


def _table(blocks: torch.Tensor) -> Array:
    return Array(
        blocks.to(torch.int32),
        torch.ones(len(blocks), dtype=torch.bool),
        why=lambda index: f"its last entry is block_table[{len(blocks) - 1}]",
    )


def _why_no_token(blocks: list[int], seq_len: int) -> Callable[[tuple[int, ...]], str]:
    def why(index: tuple[int, ...]) -> str:
        block, slot = index[:2]
        if block not in blocks:
            return f"block {block} is not in the table"
        position = blocks.index(block) * BLOCK_SIZE + slot
        return f"that is position {position}, and seq_len is {seq_len}"

    return why


def _rows(values: torch.Tensor, there: torch.Tensor, num_columns: int, is_output=False) -> Array:
    def own(program: Program) -> torch.Tensor:
        return there & (torch.arange(ROWS) == program[0])[:, None]

    return Array(
        values, there, why=lambda index: f"num_columns is {num_columns}", own=own,
        is_output=is_output, margin=NAN,
    )  # fmt: skip


def _in_columns(found: torch.Tensor) -> torch.Tensor:
    """Rows with the room of a stride."""
    return torch.cat([found, torch.zeros(ROWS, STRIDE - found.shape[1])], dim=1)


def _softmax_mistakes(x: torch.Tensor) -> dict[str, torch.Tensor]:
    largest = x.max(1, keepdim=True).values
    p = (x - largest).exp()
    num_missing = BLOCK - x.shape[1]
    with_zero = largest.clamp(min=0)
    q = (x - with_zero).exp()
    zeros = num_missing * (-with_zero).exp()
    found = {
        "exp of a large score is infinite: subtract the row's largest score first": (
            x.exp() / x.exp().sum(1, keepdim=True)
        ),
        "divide by the sum of the row": p,
        "columns that do not exist count as 0, and not as -inf": (
            q / (q.sum(1, keepdim=True) + zeros)
        ),
        "columns that do not exist have the score 0 in the sum, and not -inf": (
            p / (p.sum(1, keepdim=True) + num_missing * (-largest).exp())
        ),
        "columns that do not exist add 1 each to the sum: take -inf for them": (
            p / (p.sum(1, keepdim=True) + num_missing)
        ),
        "that is the softmax of minus the scores": (-x).softmax(1),
        "that is a power of 2: take tl.exp": (x * LOG_2).softmax(1),
        "that is divided by the number of columns": p / x.shape[1],
        "that is the score less the logarithm of the sum: take exp of it": x.log_softmax(1),
    }
    return {why: _in_columns(mistaken) for why, mistaken in found.items()}
