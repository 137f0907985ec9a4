"""NFA to DFA: each set of states that the NFA can be in becomes one state (subset construction).

A DFA reads a byte with one look-up, however long the pattern. There may be exponentially many sets,
so their number and the time to find them are bounded.
"""

from __future__ import annotations

import time

from minivllm.structured_output.regex import NFA

MAX_DFA_STATES = 10_000
MAX_SECONDS = 3.0
DEAD = -1  # where no byte leads on


class DFA:
    """A table: state and byte to state. It starts in state 0, and every state can reach an end.

    Args:
        pattern: a regular expression that the whole text must match.

    Attributes:
        byte_class: for each of 256 bytes its column; bytes that no edge tells apart share one.
        rows: by state, the next state for each column, or ``DEAD``.
        accepting: by state, whether the text may end here.

    Raises:
        ValueError: if nothing matches, or the pattern is too large.
    """

    def __init__(self, pattern: str):
        self.pattern = pattern
        nfa = NFA(pattern)
        useful = _can_reach_the_end(nfa)
        if 0 not in useful:
            raise ValueError(f"regex must match some text, got {pattern!r}.")
        self.byte_class, bounds = _byte_classes(nfa)
        self.rows: list[list[int]] = []
        self.accepting: list[bool] = []
        number_of: dict[frozenset[int], int] = {}
        deadline = time.monotonic() + MAX_SECONDS
        waiting = [_closure(nfa, {0} & useful, useful)]
        number_of[waiting[0]] = 0
        for states in waiting:  # grows while it is read
            if len(waiting) > MAX_DFA_STATES or time.monotonic() > deadline:
                raise ValueError(
                    f"regex must have at most {MAX_DFA_STATES:,} states, found in "
                    f"{MAX_SECONDS:g} s, got {pattern!r}; repeat less."
                )
            targets: list[set[int]] = [set() for _ in bounds]
            for state in states:
                for low, high, target in nfa.edges[state]:
                    if target in useful:
                        for column in range(self.byte_class[low], self.byte_class[high] + 1):
                            targets[column].add(target)
            row = []
            for together in targets:
                if not together:
                    row.append(DEAD)
                    continue
                closed = _closure(nfa, together, useful)
                if closed not in number_of:
                    number_of[closed] = len(waiting)
                    waiting.append(closed)
                row.append(number_of[closed])
            self.rows.append(row)
            self.accepting.append(nfa.end in states)

    @property
    def num_states(self) -> int:
        return len(self.rows)

    def next_state(self, state: int, byte: int) -> int:
        """The state after a byte, or ``DEAD``."""
        return self.rows[state][self.byte_class[byte]]

    def run(self, data: bytes, state: int = 0) -> int:
        """The state after some bytes, or ``DEAD``."""
        for byte in data:
            if state == DEAD:
                break
            state = self.next_state(state, byte)
        return state

    def matches(self, text: str) -> bool:
        """True if the whole text matches."""
        state = self.run(text.encode())
        return state != DEAD and self.accepting[state]

    def forced_bytes(self, state: int) -> bytes:
        """Bytes that must come next, as long as there is no choice, not even that of ending."""
        forced = bytearray()
        while not self.accepting[state]:
            onward = [byte for byte in range(256) if self.next_state(state, byte) != DEAD]
            if len(onward) != 1:
                break
            forced.append(onward[0])
            state = self.next_state(state, onward[0])
        return bytes(forced)


def _can_reach_the_end(nfa: NFA) -> set[int]:
    """Co-reachable states: those from which some text leads to the end."""
    into: list[list[int]] = [[] for _ in nfa.edges]
    for state, edges in enumerate(nfa.edges):
        for _, _, target in edges:
            into[target].append(state)
        for target in nfa.jumps[state]:
            into[target].append(state)
    found = {nfa.end}
    waiting = [nfa.end]
    for state in waiting:
        new = set(into[state]) - found
        found |= new
        waiting += new
    return found


def _byte_classes(nfa: NFA) -> tuple[list[int], list[int]]:
    """The class of each byte, and the first byte of each class."""
    edges = [edge for edges in nfa.edges for edge in edges]
    bounds = sorted({0} | {low for low, _, _ in edges} | {high + 1 for _, high, _ in edges} - {256})
    classes = []
    column = -1
    for byte in range(256):
        if column + 1 < len(bounds) and bounds[column + 1] == byte:
            column += 1
        classes.append(column)
    return classes, bounds


def _closure(nfa: NFA, states: set[int], useful: set[int]) -> frozenset[int]:
    """Epsilon closure of NFA states, without states that have only jumps.

    What may come depends on the others alone, so fewer sets differ: ``a`` and ``aa`` lead to one
    state in ``a+``.
    """
    found = set(states)
    waiting = list(states)
    for state in waiting:
        new = [t for t in nfa.jumps[state] if t in useful and t not in found]
        found.update(new)
        waiting += new
    return frozenset(state for state in found if nfa.edges[state] or state == nfa.end)
