"""The ladder of kernels: each solution passes, and each typical mistake is told what it does."""

import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from minivllm.course.ch10 import kernel_ladder  # noqa: E402
from minivllm.exercises import labs  # noqa: E402

pytestmark = pytest.mark.slow
LADDER = (
    labs.copy,
    labs.masked_add,
    labs.table_sum,
    labs.row_softmax,
    labs.decode_one,
    labs.decode,
)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("lab", LADDER, ids=lambda lab: lab.name)
def test_the_solution_passes_and_a_stub_is_not_solved(lab, seed, capsys):
    assert lab.solution is getattr(kernel_ladder, lab.name)
    assert lab.verdict(lab.solution, seed).outcome == "passed"
    assert lab.verdict(lab.stub).text == "put @triton.jit above the function."
    lab.grade(triton.jit(lab.stub))
    assert capsys.readouterr().out == "not solved yet\n"


@triton.jit
def copy_without_mask(out, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n, other=0.0))


@triton.jit
def copy_of_the_first_block(out, x, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def add_times_present(out, x, y, present, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < n
    there = tl.load(present + place, mask=exists, other=0)
    total = tl.load(x + place, mask=exists) + there * tl.load(y + place, mask=exists)
    tl.store(out + place, total, mask=exists)


@triton.jit
def sum_without_table(out, cache, block_table, seq_len, BLOCK_SIZE: tl.constexpr):
    total = 0.0
    for position in range(seq_len):
        total += tl.load(cache + position)
    tl.store(out, total)


@triton.jit
def softmax_without_maximum(out, x, num_columns, stride, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    exists = column < num_columns
    p = tl.exp(tl.load(x + row * stride + column, mask=exists, other=float("-inf")))
    tl.store(out + row * stride + column, p / tl.sum(p, 0), mask=exists)


@triton.jit
def decode_of_zeros(
    out, query, key_cache, value_cache, block_table, seq_len, scale,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    tl.store(out + tl.arange(0, HEAD_DIM), tl.zeros([HEAD_DIM], tl.float32))


@pytest.mark.parametrize(
    ("lab", "kernel", "told"),
    [
        (labs.copy, copy_without_mask, "1 numbers: a place was written that is not the kernel's"),
        (labs.copy, copy_of_the_first_block, "9 numbers: NaN comes out"),
        (labs.masked_add, add_times_present, "NaN comes out: not written, or read where no"),
        (labs.table_sum, sum_without_table, "NaN comes out"),
        (labs.row_softmax, softmax_without_maximum, "scores up to 200: NaN comes out"),
        (labs.decode_one, decode_of_zeros, "1 tokens, keys up to 1: off by up to"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_is_told_what_it_does(lab, kernel, told):
    verdict = lab.verdict(kernel)
    assert verdict.outcome == "FAILED"
    assert told in verdict.text
