"""Regular expression to NFA over bytes: an automaton that may be in several states at once.

The pattern is parsed by Python's own parser; Thompson's construction turns each node of that tree
into a few states. What no finite automaton can do (look-arounds, back references) is refused.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from itertools import pairwise
from typing import Any

from minivllm.logger import without_warnings
from minivllm.structured_output.utf8 import LAST_CHARACTER, byte_sequences

_parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MAX_NFA_STATES = 20_000

Ranges = list[tuple[int, int]]  # of code points, both ends included

# ASCII, as with the flag re.ASCII and as in vLLM
_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
_ALLOWED_FLAGS = re.UNICODE | re.ASCII | re.DOTALL | re.VERBOSE


class UnsupportedRegex(ValueError):
    """Error: a pattern that is no regular language, or that this parser does not read."""


def complement(ranges: Ranges) -> Ranges:
    """The complement of a set of character ranges."""
    ends = [(-1, -1), *sorted(ranges), (LAST_CHARACTER + 1, LAST_CHARACTER + 1)]
    gaps = []
    last = -1
    for before, after in pairwise(ends):
        last = max(last, before[1])
        if last + 1 < after[0]:
            gaps.append((last + 1, after[0] - 1))
    return gaps


class NFA:
    """NFA: states with edges over byte ranges, and epsilon jumps. It starts in state 0.

    Args:
        pattern: a regular expression that the whole text must match.

    Raises:
        UnsupportedRegex: if no automaton can do it.
        ValueError: if it is no regular expression, or needs too many states.
    """

    def __init__(self, pattern: str):
        try:
            with without_warnings():
                tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(
                f"regex must be a regular expression, got {pattern!r} ({error})."
            ) from error
        self.pattern = pattern
        self.edges: list[list[tuple[int, int, int]]] = []  # by state: low byte, high byte, target
        self.jumps: list[list[int]] = []  # by state: targets
        if unknown := tree.state.flags & ~_ALLOWED_FLAGS:
            raise self._refuse(f"the flags {re.RegexFlag(unknown)!r}")
        self._dot_is_all = bool(tree.state.flags & re.DOTALL)
        start = self._new_state()
        self.end = self._sequence(list(tree), start, first=True, last=True)

    def _new_state(self) -> int:
        if len(self.edges) == MAX_NFA_STATES:
            raise ValueError(
                f"regex must need at most {MAX_NFA_STATES:,} states before it is made "
                f"deterministic, got {self.pattern!r}; repeat less."
            )
        self.edges.append([])
        self.jumps.append([])
        return len(self.edges) - 1

    def _refuse(self, what: str) -> UnsupportedRegex:
        return UnsupportedRegex(
            f"regex must do without {what} for the backend 'fsm', got {self.pattern!r}."
        )

    # -- each method reads a part of the tree from a state on, and returns the state behind it -----
    # A part never leads back to the state it starts in, so several may start in the same one.

    def _sequence(self, parts: list, state: int, first: bool = False, last: bool = False) -> int:
        for i, (kind, value) in enumerate(parts):
            starts = first and i == 0
            ends = last and i == len(parts) - 1
            if str(kind) == "AT":
                # the whole text must match anyway: anchors at its ends say nothing more
                if str(value) in ("AT_BEGINNING", "AT_BEGINNING_STRING") and starts:
                    continue
                if str(value) in ("AT_END", "AT_END_STRING") and ends:
                    continue
                raise self._refuse("anchors and boundaries inside the text")
            state = self._part(str(kind), value, state, first=starts, last=ends)
        return state

    def _part(self, kind: str, value, state: int, first: bool, last: bool) -> int:
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):  # greedy or not: the same texts match
            least, most, part = value
            return self._repeat(least, most, list(part), state)
        if kind == "BRANCH":
            end = self._new_state()
            for branch in value[1]:
                self.jumps[self._sequence(list(branch), state, first=first, last=last)].append(end)
            return end
        if kind == "SUBPATTERN":
            _, added, removed, part = value
            if added or removed:
                raise self._refuse("flags for a part of the pattern")
            return self._sequence(list(part), state, first=first, last=last)
        return self._characters(self._set_of(kind, value), state)

    def _repeat(self, least: int, most: int, part: list, state: int) -> int:
        for _ in range(least):
            state = self._sequence(part, state)
        if most == _parser.MAXREPEAT:
            loop = self._new_state()
            self.jumps[state].append(loop)
            self.jumps[self._sequence(part, loop)].append(loop)
            return loop
        end = self._new_state()
        for _ in range(most - least):
            self.jumps[state].append(end)  # enough
            state = self._sequence(part, state)
        self.jumps[state].append(end)
        return end

    def _characters(self, ranges: Ranges, state: int) -> int:
        end = self._new_state()
        reads = {(): end}  # what a character still lacks: the state that reads it

        def state_that_reads(pairs: tuple) -> int:
            if pairs not in reads:
                reads[pairs] = self._new_state()
                self.edges[reads[pairs]].append((*pairs[0], state_that_reads(pairs[1:])))
            return reads[pairs]

        for first, last in ranges:
            for (low, high), *rest in byte_sequences(first, last):
                self.edges[state].append((low, high, state_that_reads(tuple(rest))))
        return end

    def _set_of(self, kind: str, value) -> Ranges:
        """Character ranges of a leaf of the tree: a literal, a class or a dot."""
        if kind == "LITERAL":
            return [(value, value)]
        if kind == "NOT_LITERAL":
            return complement([(value, value)])
        if kind == "RANGE":
            return [value]
        if kind == "ANY":
            return [(0, LAST_CHARACTER)] if self._dot_is_all else complement([(10, 10)])
        if kind == "CATEGORY":
            return {
                "CATEGORY_DIGIT": _DIGITS,
                "CATEGORY_WORD": _WORD,
                "CATEGORY_SPACE": _SPACES,
                "CATEGORY_NOT_DIGIT": complement(_DIGITS),
                "CATEGORY_NOT_WORD": complement(_WORD),
                "CATEGORY_NOT_SPACE": complement(_SPACES),
            }[str(value)]
        if kind == "IN":
            negated = str(value[0][0]) == "NEGATE"
            ranges = [r for k, v in value[negated:] for r in self._set_of(str(k), v)]
            return complement(ranges) if negated else ranges
        raise self._refuse(_WHAT_IT_IS.get(kind, kind))


_WHAT_IT_IS = {
    "ASSERT": "look-arounds",
    "ASSERT_NOT": "look-arounds",
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "back references",
    "POSSESSIVE_REPEAT": "possessive repetition",
    "ATOMIC_GROUP": "atomic groups",
}
