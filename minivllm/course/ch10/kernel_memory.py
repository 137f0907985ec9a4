"""Kernel memory: the arrays of a kernel's run, and what each program loads from them and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from minivllm.attention.kernels.recorder import watch_memory
from minivllm.course.grading.run import Fault

MARGIN = 256  # numbers on both sides of an array: a kernel that leaves it harms nothing
Program = tuple[int, ...]  # its ``tl.program_id``, as many as the grid has directions


class Array:
    """One pointer of a kernel: its numbers, between two margins, and which of them are there.

    Args:
        values: what it holds, on a CPU.
        there: bool, of the same shape: what may be loaded; of ``out``, what is to be stored.
        why: called with the index of a number that is not there; says why it is not.
        own: called with a program; bool, of the same shape: what this program has to load, or to
            store. None is all that is there.
        is_output: whether it is stored, and not loaded.
        margin: the number that is left and right of it.
        spare: bool, of the same shape: what may be loaded, and is of no use to any program.
    """

    def __init__(
        self,
        values: torch.Tensor,
        there: torch.Tensor,
        why: Callable[[tuple[int, ...]], str],
        own: Callable[[Program], torch.Tensor] | None = None,
        is_output: bool = False,
        margin: float = 0,
        spare: torch.Tensor | None = None,
    ):
        storage = torch.full((MARGIN + values.numel() + MARGIN,), margin).to(values.dtype)
        self.tensor = storage[MARGIN:-MARGIN].view(values.shape)
        self.tensor.copy_(values)
        self.there = there.flatten().numpy()
        self.why = why
        self.own = own
        self.is_output = is_output
        self.spare = set() if spare is None else set(np.flatnonzero(spare.flatten()).tolist())

    def owned_by(self, program: Program) -> np.ndarray:
        """Offsets of what a program has to load, or to store."""
        mine = self.there if self.own is None else self.own(program).flatten().numpy()
        return np.flatnonzero(mine)

    def offsets(self, addresses: np.ndarray) -> np.ndarray:
        """Places of the addresses that are in this array or in its margins, counted in numbers."""
        size = self.tensor.element_size()
        offsets = (addresses - self.tensor.data_ptr()) // size
        return offsets[(offsets >= -MARGIN) & (offsets < self.tensor.numel() + MARGIN)]

    def is_there(self, offsets: np.ndarray) -> np.ndarray:
        """True for each offset of a number that may be loaded, or is to be stored."""
        inside = (offsets >= 0) & (offsets < len(self.there))
        return inside & self.there[np.clip(offsets, 0, len(self.there) - 1)]

    def index(self, offset: int) -> tuple[int, ...]:
        """The index of a number; of one outside of the array the last direction goes on."""
        index = []
        for length in reversed(self.tensor.shape[1:]):
            index.append(offset % length)
            offset //= length
        return (offset, *reversed(index))


@dataclass
class Memory:
    """Arrays of a run by name, and what its programs have loaded and stored so far.

    Attributes:
        fault: the first access that is not allowed, in words.
        loaded, stored: by array and program, the offsets in the order of their first access.
        is_open: whether a load left out numbers without ``other=``.
        wrong: the array, the program and the number of the access that is not allowed.
    """

    arrays: dict[str, Array]
    grid: tuple[int, ...]
    fault: str = ""
    loaded: dict[str, dict[Program, dict[int, None]]] = field(default_factory=dict)
    stored: dict[str, dict[Program, dict[int, None]]] = field(default_factory=dict)
    is_open: bool = False
    wrong: tuple[str, Program, int] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager: note the accesses of a kernel, and end it at one that is not allowed."""
        with watch_memory(self._note_load, self._note_store):
            yield

    def _note_load(self, program: Program, addresses: np.ndarray, is_open: bool) -> None:
        self.is_open |= is_open
        program = program[: len(self.grid)]
        for name, offsets in self._places(program, "loads", addresses):
            array = self.arrays[name]
            allowed = array.is_there(offsets)
            if array.is_output:
                allowed &= np.isin(offsets, list(self.stored.get(name, {}).get(program, {})))
            _note(self.loaded, name, program, offsets)
            if not allowed.all():
                self._refuse(name, program, "loads", offsets[~allowed])

    def _note_store(self, program: Program, addresses: np.ndarray) -> None:
        program = program[: len(self.grid)]
        for name, offsets in self._places(program, "stores", addresses):
            array = self.arrays[name]
            allowed = array.is_there(offsets) & array.is_output
            _note(self.stored, name, program, offsets)
            if not allowed.all():
                self._refuse(name, program, "stores", offsets[~allowed])

    def _places(self, program: Program, verb: str, addresses) -> Iterator[tuple[str, np.ndarray]]:
        num_found = 0
        for name, array in self.arrays.items():
            offsets = array.offsets(addresses)
            num_found += len(offsets)
            if len(offsets):
                yield name, offsets
        if num_found < len(addresses):
            known = ", ".join(self.arrays)
            self.fault = f"{self.called(program)} {verb} far away from all of {known}"
            raise Fault(self.fault)

    def _refuse(self, name: str, program: Program, verb: str, offsets: np.ndarray) -> None:
        array = self.arrays[name]
        first = int(offsets[0])
        if verb == "stores" and not array.is_output:
            why = f"{name} is only read"
        elif verb == "loads" and array.is_output and array.is_there(offsets).all():
            why = "nothing is stored there yet"
        elif array.tensor.dim() > 1 and not 0 <= first < array.tensor.numel():
            why = f"{name} has the shape {list(array.tensor.shape)}"
        else:
            why = array.why(array.index(first))
        self.fault = f"{self.called(program)} {verb} {self.named(name, offsets)}; {why}"
        self.wrong = name, program, first
        raise Fault(self.fault)

    def called(self, program: Program) -> str:
        """The words for a program: its number, or its numbers where a grid has two directions."""
        return f"program {program[0] if len(program) == 1 else program}"

    def named(self, name: str, offsets: np.ndarray) -> str:
        """The words for places: one, a range, or the first two and how many more."""
        found = list(dict.fromkeys(int(offset) for offset in offsets))

        def place(offset: int) -> str:
            return f"{name}[{', '.join(map(str, self.arrays[name].index(offset)))}]"

        if len(found) == 1:
            return place(found[0])
        if sorted(found) == list(range(min(found), max(found) + 1)):
            return f"{place(min(found))} to {place(max(found))}"
        more = f" and {len(found) - 2} more" if len(found) > 2 else ""
        return f"{place(found[0])}{',' if more else ' and'} {place(found[1])}{more}"

    def programs(self) -> Iterator[Program]:
        """Every program of the grid."""
        yield from np.ndindex(*self.grid)


def _note(notes: dict, name: str, program: Program, offsets: np.ndarray) -> None:
    notes.setdefault(name, {}).setdefault(program, {}).update(dict.fromkeys(offsets.tolist()))
