"""Kernel runs: a reader's Triton kernel, watched by the interpreter beside its specification.

Each ``tl.load`` and ``tl.store`` is compared with what the kernel may load and store before it
happens, so a wrong address is told with its program, and nothing is read that does not exist.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction

from minivllm.course.ch10.instruction_limit import at_most_instructions
from minivllm.course.ch10.kernel_memory import Array, Memory, Program
from minivllm.course.grading.function_lab import Passed, WrongEntry, call
from minivllm.course.grading.run import Fault
from minivllm.lab.viz import Figure, program_loads
from minivllm.lab.viz.draw.wording import count

TOLERANCE = 1e-3


@dataclass
class KernelRun:
    """One launch of a kernel, and what must come of it.

    Args:
        name: its inputs in a few words.
        grid: how many programs, in one direction or in two.
        arrays: its pointers by name; one of them is ``out``.
        numbers: its other arguments by name.
        right: what is in ``out`` afterwards, in the places that are stored.
        drawn: the array whose loads are drawn.
        mistakes: called after a wrong output; by explanation, what each mistake leads to.
        unit: how many numbers of it are one box of the drawing: 1, or those of a block.
    """

    name: str
    grid: tuple[int, ...]
    arrays: dict[str, Array]
    numbers: dict[str, Any]
    right: torch.Tensor
    drawn: str
    mistakes: Callable[[], Mapping[str, torch.Tensor]] = dict
    unit: int = 1


def check_kernel(function: Any, stub: Callable, runs: Iterable[KernelRun], what: str) -> Passed:
    """Run a kernel on some inputs, and draw what it loads in the last of these runs.

    Args:
        function: the reader's, with ``@triton.jit`` above it.
        stub: has its arguments; those in capitals are ``tl.constexpr``.
        runs: one after the other, until one goes wrong.
        what: the inputs, in the plural.

    Raises:
        Fault: if the kernel cannot run here, loads or stores what it must not, does not end, or has
            another result; with a drawing of what was loaded until then.
    """
    num_runs = 0
    for run in runs:
        check_arguments(function, stub, run.arrays)
        memory = _launch(function, run)
        if fault := _what_is_wrong(memory, run):
            fault.figure = _drawn(memory, run)
            raise fault
        num_runs += 1
    return Passed(f"equal to torch for {num_runs} {what}", _drawn(memory, run))


def check_arguments(function: Any, stub: Callable, pointers: Collection[str] = ()) -> None:
    """Refuse a function that is no kernel, or has other arguments than the stub.

    Args:
        function, stub: the reader's kernel, and the function it was made from.
        pointers: names of arguments that have no numbers in brackets behind them.

    Raises:
        Fault: if it is refused.
        NotImplementedError: if its last line is still the stub's.
    """
    if isinstance(function, FunctionType):
        raise Fault("put @triton.jit above the function")
    if not isinstance(function, InterpretedFunction):
        raise Fault("give a kernel that was made while TRITON_INTERPRET=1 was set")
    tree = ast.parse(textwrap.dedent(inspect.getsource(function.fn))).body[0]
    if "NotImplementedError" in ast.unparse(tree.body[-1]):
        raise NotImplementedError
    wanted = list(inspect.signature(stub).parameters)
    parameters = inspect.signature(function.fn).parameters
    for name in wanted:
        if name not in parameters:
            raise Fault(f"the argument {name} is missing: {', '.join(wanted)} are given")
    for name, parameter in parameters.items():
        if name not in wanted and parameter.default is parameter.empty:
            raise Fault(f"{name} is none of the arguments that are given: {', '.join(wanted)}")
        is_constexpr = "constexpr" in str(parameter.annotation)
        if name in wanted and name.isupper() and not is_constexpr:
            raise Fault(
                f"write {name}: tl.constexpr; a size has to be known before the kernel runs"
            )
        if name in wanted and not name.isupper() and is_constexpr:
            raise Fault(f"{name} is no tl.constexpr: it is known only when the kernel runs")
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in pointers:
                raise Fault(f"{name} is a pointer: write tl.load({name} + ...), or tl.store")


@contextmanager
def bounded() -> Iterator[None]:
    """Context manager for a reader's kernel: it ends, and a NaN is told by the check alone."""
    with at_most_instructions(), np.errstate(all="ignore"):
        yield


def _launch(function: Any, run: KernelRun) -> Memory:
    memory = Memory(run.arrays, run.grid)
    pointers = {name: array.tensor for name, array in run.arrays.items()}
    try:
        with memory.watched(), bounded():
            call(function[run.grid], **pointers, **run.numbers)
    except Fault as fault:
        told = memory.fault or _plainer(str(fault))
        raise Fault(f"{run.name}: {told}", _drawn(memory, run)) from fault
    if memory.fault:  # a kernel that catches what ends it
        raise Fault(f"{run.name}: {memory.fault}", _drawn(memory, run))
    return memory


def _plainer(message: str) -> str:
    """A message of the interpreter, in words that help."""
    where, _, told = message.partition(": ")
    if told.startswith("cannot cast ["):  # addresses follow
        return f"{where}: a pointer is no number, tl.load gives one"
    if told == "arange's arguments must be of type tl.constexpr":
        return f"{where}: the ends of tl.arange are a tl.constexpr; a mask leaves out the rest"
    return message


def _what_is_wrong(memory: Memory, run: KernelRun) -> Fault | None:
    """Say why an output is not the right one; None if it is."""
    out = run.arrays["out"]
    stored = {i for offsets in memory.stored.get("out", {}).values() for i in offsets}
    missing = [i for i, there in enumerate(out.there) if there and i not in stored]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        told = [f"{memory.named('out', missing)} {verb} never stored", *_strays(memory)]
        return Fault(f"{run.name}: {'; '.join(told[:2])}")
    got = out.tensor.flatten()[out.there]
    right = run.right.flatten()[out.there]
    close = is_close(got, right)
    if close.all():
        twice = next(_stored_twice(memory), None)
        return Fault(f"{run.name}: {twice}") if twice else None
    wrong = int(close.logical_not().nonzero()[0])
    place = memory.named("out", [torch.from_numpy(out.there).nonzero().flatten()[wrong]])
    told = f"{run.name}: {place} is {float(got[wrong]):.4g}"
    for reason in _reasons(memory, run, got):
        return Fault(f"{told}; {reason}")
    return WrongEntry(told, f"{float(right[wrong]):.4g}")


def _reasons(memory: Memory, run: KernelRun, got: torch.Tensor) -> Iterator[str]:
    if got.isnan().any() and memory.is_open:
        yield "what a mask leaves out may be anything: give that load other="
    there = run.arrays["out"].there
    expected = {why: mistaken.flatten()[there] for why, mistaken in run.mistakes().items()}
    alike = [why for why, values in expected.items() if is_close(got, values).all()]
    yield from (why for why in alike if not expected[why].isnan().all())
    yield from _strays(memory)
    yield from alike


def is_close(got: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Bool: equal up to what the order of sums changes; NaN is equal to NaN."""
    return torch.isclose(got, right, TOLERANCE, TOLERANCE, equal_nan=True)


def _strays(memory: Memory) -> Iterator[str]:
    """Loads and stores of programs that are another program's work, and loads that are lacking."""
    accesses = {"loads": memory.loaded, "stores": memory.stored}
    for verb, notes in accesses.items():
        yield from _same_for_all(memory, verb, notes)
    for program in memory.programs():
        who = memory.called(program)
        for name, array in memory.arrays.items():
            verb = "stores" if array.is_output else "loads"
            mine = {*array.owned_by(program).tolist(), *array.spare}
            found = accesses[verb].get(name, {}).get(program, {})
            strange = [offset for offset in found if offset not in mine] if array.own else []
            lacking = sorted(mine.difference(found) - array.spare)
            if strange:
                yield f"{who} {verb} {memory.named(name, strange)}, which is another program's work"
            if lacking and not array.is_output:
                yield f"{who} never loads {memory.named(name, lacking)}"


def _stored_twice(memory: Memory) -> Iterator[str]:
    """Say which places two programs store: with programs in any order, one of them is too many."""
    first: dict[int, Program] = {}
    for program, offsets in memory.stored.get("out", {}).items():
        again = [offset for offset in offsets if first.setdefault(offset, program) != program]
        if again:
            who, other = memory.called(program), memory.called(first[again[0]])
            yield (
                f"{who} stores {memory.named('out', again)}, as {other} does: each program has "
                "places of its own"
            )


def _same_for_all(memory: Memory, verb: str, notes: dict) -> Iterator[str]:
    """A word about programs that all do the same, where each has work of its own."""
    for name, array in memory.arrays.items():
        found = [set(notes.get(name, {}).get(program, {})) for program in memory.programs()]
        owned = {tuple(array.owned_by(program)) for program in memory.programs()}
        if len(owned) > 1 and found[0] and all(each == found[0] for each in found):
            yield (
                f"every program {verb} {memory.named(name, sorted(found[0]))}: "
                "tl.program_id is not in its address"
            )


def _drawn(memory: Memory, run: KernelRun) -> Figure | None:
    """Draw what each program loads of one array, as far as it came; None if it loads nothing."""
    noun = "number" if run.unit == 1 else "block"
    boxes = {}
    mark = []
    for program, offsets in memory.loaded.get(run.drawn, {}).items():
        called = memory.called(program)
        boxes[called] = list(dict.fromkeys(offset // run.unit for offset in offsets))
        if memory.wrong and memory.wrong[:2] == (run.drawn, program):
            place = boxes[called].index(memory.wrong[2] // run.unit)
            mark = [(called, place, memory.fault.partition("; ")[2])]
    if not boxes:
        return None
    times = Counter(box for row in boxes.values() for box in row)
    again = sum(number > 1 for number in times.values())
    often = f"{again} of them more than once" if again else "each once"
    title = f"{run.name}: {count(len(times), noun)} of {run.drawn} loaded, {often}"
    if mark:
        title = f"{mark[0][0].capitalize()} loads from {run.drawn} what is not there"
    return program_loads(boxes, title=title, mark=mark, noun=f"{noun}s")
