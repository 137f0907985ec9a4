"""The ladder of kernels: each solution passes, and each typical mistake is told what it does."""

import inspect
import linecache
import os
import re
import sys

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from minivllm.course.asking.answers import NotYet  # noqa: E402
from minivllm.course.ch10 import kernel_ladder  # noqa: E402
from minivllm.course.ch10.instruction_limit import at_most_instructions  # noqa: E402
from minivllm.course.grading.run import Fault  # noqa: E402
from minivllm.exercises import labs, points  # noqa: E402

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


# -- what must be refused ------------------------------------------------------------------------


@triton.jit
def copy_without_any_mask(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def masked_add_without_any_mask(out, x, y, present, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = tl.load(present + i) != 0
    tl.store(out + i, tl.load(x + i) + tl.load(y + i, mask=there, other=0.0))


@triton.jit
def copy_of_the_first_block(out, x, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def copy_of_everything_by_every_program(out, x, n, BLOCK: tl.constexpr):
    for i in range(n):
        tl.store(out + i, tl.load(x + i))


@triton.jit
def copy_into_x(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def copy_from_far_away(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + 1_000_000 * i, mask=i < n), mask=i < n)


@triton.jit
def copy_without_an_end(out, x, n, BLOCK: tl.constexpr):
    while n > 0:
        n = n + 1


@triton.jit
def copy_by_atomics_without_mask(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.atomic_add(out + i, 0.0)


@triton.jit
def copy_with_a_tensor_as_constexpr(out: tl.constexpr, x, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x))


@triton.jit
def sum_of_what_a_mask_leaves_out(out, cache, block_table, seq_len, BLOCK_SIZE: tl.constexpr):
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    offset = tl.arange(0, BLOCK_SIZE)
    for index in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(block_table + index)
        exists = index * BLOCK_SIZE + offset < seq_len
        total += tl.load(cache + block * BLOCK_SIZE + offset, mask=exists)
    tl.store(out, tl.sum(total, 0))


REFUSED = [
    (labs.copy, copy_without_any_mask, "n = 9: program 1 loads x[9] to x[15]; n is 9."),
    (labs.masked_add, masked_add_without_any_mask, "program 1 loads present[9] to present[15]"),
    (labs.copy, copy_of_the_first_block, "out[8] is never stored; every program loads x[0] to"),
    (labs.copy, copy_of_everything_by_every_program, "program 1 stores out[0] to out[8], as"),
    (labs.copy, copy_into_x, "program 0 stores x[0] to x[7]; x is only read."),
    (labs.copy, copy_from_far_away, "program 0 loads far away from all of out, x."),
    (labs.copy, copy_by_atomics_without_mask, "program 1 loads out[9] to out[15]; n is 9."),
    (labs.copy, copy_with_a_tensor_as_constexpr, "out is no tl.constexpr: it is known only when"),
    (labs.copy, labs.masked_add.solution, "y is none of the arguments that are given: out, x, n"),
    (labs.table_sum, sum_of_what_a_mask_leaves_out, "out[0] is nan; what a mask leaves out may be"),
]


@pytest.mark.parametrize(
    ("lab", "kernel", "told"), REFUSED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_wrong_kernel_is_told_the_program_and_the_address(lab, kernel, told):
    """In x and in the right output everything behind n may not be NaN alone."""
    verdict = lab.verdict(kernel)
    assert verdict.outcome == "FAILED"
    assert told in verdict.text


@pytest.mark.parametrize("lab", LADDER, ids=lambda lab: lab.name)
def test_a_store_without_a_mask_or_beside_its_place_is_refused(lab, tmp_path):
    """Whatever the lab: one place further, a place too few, and every mask left out."""
    source = inspect.getsource(lab.solution.fn)
    store = re.search(r"tl\.store\(out( \+ [\w *+]+)?, .*\)", source)[0]
    changes = [
        (store, store.replace("tl.store(out", "tl.store(out + 1")),
        (store, "pass"),
        *((mask, "") for mask in re.findall(r", mask=(?:[^,()\[\]]|\[[^\]]*\])+", source)),
    ]
    for right, wrong in changes:
        verdict = lab.verdict(from_file(tmp_path, source.replace(right, wrong, 1), lab.name))
        assert verdict.outcome == "FAILED", (right, wrong)


def from_file(folder, source, name):
    """A kernel of this source; Triton reads it again from its file."""
    path = folder / "mine.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n{source}")
    linecache.checkcache()
    names = {"__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names[name]


# -- what must pass ------------------------------------------------------------------------------


@triton.jit
def copy_in_strides(x, out, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    for start in range(first, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def copy_one_by_one(out, x, n, BLOCK: tl.constexpr):
    for i in range(tl.program_id(0) * BLOCK, min(n, tl.program_id(0) * BLOCK + BLOCK)):
        tl.store(out + i, tl.load(x + i))


@triton.jit
def sum_in_out_itself(out, cache, block_table, seq_len, BLOCK_SIZE: tl.constexpr):
    tl.store(out, 0.0)
    for p in range(seq_len):
        block = tl.load(block_table + p // BLOCK_SIZE)
        tl.store(out, tl.load(out) + tl.load(cache + block * BLOCK_SIZE + p % BLOCK_SIZE))


@triton.jit
def softmax_in_three_passes(out, x, num_columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * stride
    largest, total = float("-inf"), 0.0
    for column in range(num_columns):
        largest = tl.maximum(largest, tl.load(x + row + column))
    for column in range(num_columns):
        total += tl.exp(tl.load(x + row + column) - largest)
    for column in range(num_columns):
        tl.store(out + row + column, tl.exp(tl.load(x + row + column) - largest) / total)


@pytest.mark.parametrize(
    ("lab", "kernel"),
    [
        (labs.copy, copy_in_strides),
        (labs.copy, copy_one_by_one),
        (labs.table_sum, sum_in_out_itself),
        (labs.row_softmax, softmax_in_three_passes),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_right_kernel_of_another_form_passes(lab, kernel):
    assert lab.verdict(kernel).outcome == "passed", lab.verdict(kernel).text


def test_loads_are_drawn_whether_a_kernel_is_right_or_wrong(capsys):
    wrong = labs.copy.verdict(copy_without_any_mask).figure
    assert "program 1: 8 9 10 11 12 13 14 15" in wrong.text
    assert "^ program 1 1: n is 9" in wrong.text
    right = labs.copy.verdict(labs.copy.solution).figure
    assert "program 3: 24 25 26 27 28 29" in right.text
    labs.copy.grade(copy_without_any_mask)
    assert wrong.text in capsys.readouterr().out
    with pytest.raises(NotYet):
        points(labs.copy, copy_without_any_mask)
    assert capsys.readouterr() == ("", "")


def test_after_a_kernel_without_an_end_nothing_is_counted():
    before = sys.gettrace()
    told = "n = 9: copy_without_an_end does not end: 100,000 instructions have run"
    assert told in labs.copy.verdict(copy_without_an_end).text
    assert sys.gettrace() is before
    assert sum(1 for _ in range(200_000)) == 200_000
    names = {}
    exec(compile("def the_loop():\n    while True: pass", "mine.py", "exec"), names)
    with (
        pytest.raises(Fault, match="the_loop does not end: 10 instructions"),
        at_most_instructions(10),
    ):
        names["the_loop"]()
