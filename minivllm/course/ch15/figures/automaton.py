"""Automaton: the states of a DFA as circles, and what leads from one to the next as arrows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.structured_output.dfa import DEAD, DFA
from minivllm.utils.validation import check

RADIUS = 17
COLUMN = 104
ROW = 76
MAX_STATES = 40
_END = OKABE_ITO[2]
_PATH = OKABE_ITO[3]


def automaton(
    dfa: DFA, notes: Sequence[str] = (), path: Sequence[int] = (), title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a DFA from left to right. States in which a text may end are double circles.

    Args:
        dfa: of at most 40 states.
        notes: a few characters under each state.
        path: states in the order in which a text went through them: drawn orange.
        title, mark: what it shows, and places to point at: (state, text).

    Raises:
        ValueError: if it has more states, or a state of the path is none of its.
    """
    allowed = f"one of at most {MAX_STATES} states"
    check(dfa.num_states <= MAX_STATES, "dfa", f"{dfa.num_states} states", allowed)
    ok = all(0 <= state < dfa.num_states for state in path)
    check(ok, "path", path, f"states below {dfa.num_states}")
    name = f"The automaton of {dfa.pattern}"
    ends = sum(dfa.accepting)
    facts = f"{dfa.num_states} states, the text may end in {ends} (double circles)"
    edges = _edges(dfa)
    columns = _columns(edges)
    places = {
        state: (x, y - (len(column) - 1) / 2)
        for x, column in enumerate(columns)
        for y, state in enumerate(column)
    }
    rows = max(map(len, columns))
    left = MARGIN + RADIUS + 26
    column = min(COLUMN, (MAX_WIDTH - 2 * left) / max(1, len(columns) - 1))
    loops = any(start == end for start, end in edges)
    above = 50 if loops or any(b - a > 1 for a, b in _spans(edges, places)) else 22
    middle = HEADER_HEIGHT + above + RADIUS + (rows - 1) * ROW / 2
    below = 40 if any(b < a for a, b in _spans(edges, places)) else 20
    right = 2 * left + (len(columns) - 1) * column - MARGIN
    bottom = middle + (rows - 1) * ROW / 2 + RADIUS + below
    at = {state: (left + x * column, middle + y * ROW) for state, (x, y) in places.items()}
    text = "\n".join([name, facts, *_lines(dfa, edges, notes, path)])
    drawing = sheet(name, facts, f"{name}; {facts}.", right, bottom)
    x, y = at[0]
    drawing.arrow(f"M{x - RADIUS - 22:g} {y:g}H{x - RADIUS - 1:g}", (x - RADIUS, y), (1, 0), GREY)
    taken = set(pairwise(path))
    for (start, end), data in edges.items():
        colour = _PATH if (start, end) in taken else GREY
        _draw_edge(drawing, at[start], at[end], label=label_of(data), colour=colour, column=column)
    for state, place in at.items():
        _draw_state(drawing, dfa, state, place, state in path)
        x, y = place
        drawing.place((state,), x - RADIUS, y - RADIUS, 2 * RADIUS, 2 * RADIUS)
        if state < len(notes):
            _label(drawing, x, y + RADIUS + 14, notes[state], GREY)
    return finish(drawing, text, title, mark)


def label_of(data: Collection[int]) -> str:
    """Some bytes in a few characters: ``0-9 a-f``; those that are no ASCII character in hex."""
    runs: list[list[int]] = []
    for byte in sorted(data):
        if runs and runs[-1][1] == byte - 1:
            runs[-1][1] = byte
        else:
            runs.append([byte, byte])
    names = [_name(low) if low == high else f"{_name(low)}-{_name(high)}" for low, high in runs]
    return " ".join(names) if len(names) <= 3 else f"{' '.join(names[:2])} ... {names[-1]}"


def _name(byte: int) -> str:
    return {32: "space", 10: "\\n"}.get(byte) or (chr(byte) if 32 < byte < 127 else f"x{byte:02X}")


def _edges(dfa: DFA) -> dict[tuple[int, int], list[int]]:
    """From state to state, the bytes that lead there."""
    edges: dict[tuple[int, int], list[int]] = {}
    for state in range(dfa.num_states):
        for byte in range(256):
            target = dfa.next_state(state, byte)
            if target != DEAD:
                edges.setdefault((state, target), []).append(byte)
    return edges


def _columns(edges: Collection[tuple[int, int]]) -> list[list[int]]:
    """The states by the longest way to each, edges that lead back not counted."""
    onward: dict[int, list[int]] = {}
    for start, end in edges:
        if start != end:
            onward.setdefault(start, []).append(end)
    order = []
    open_states = []
    back = set()

    def visit(state: int) -> None:
        open_states.append(state)
        for end in onward.get(state, ()):
            if end in open_states:
                back.add((state, end))
            elif end not in order:
                visit(end)
        open_states.pop()
        order.append(state)

    visit(0)
    column = dict.fromkeys(order, 0)
    for state in reversed(order):  # each after all that lead to it, edges back apart
        for end in onward.get(state, ()):
            if (state, end) not in back:
                column[end] = max(column[end], column[state] + 1)
    columns: list[list[int]] = [[] for _ in range(1 + max(column.values()))]
    for state in sorted(column):
        columns[column[state]].append(state)
    return columns


def _spans(edges, places) -> list[tuple[int, int]]:
    """The columns that each edge leads from and to."""
    return [(places[a][0], places[b][0]) for a, b in edges if a != b]


def _draw_state(drawing: Drawing, dfa: DFA, state: int, place, on_path: bool) -> None:
    x, y = place
    ends = dfa.accepting[state]
    edge = _PATH if on_path else _END if ends else LINE
    for radius in (RADIUS, RADIUS - 4) if ends else (RADIUS,):
        drawing.path(_circle(x, y, radius), fill=PAPER, stroke=edge, stroke_width=2)
    drawing.text(x, y + 4, state, text_anchor="middle", fill=INK if ends or on_path else GREY)


def _circle(x: float, y: float, radius: float) -> str:
    half = f"a{radius:g} {radius:g} 0 1 0 "
    return f"M{x - radius:g} {y:g}{half}{2 * radius:g} 0{half}{-2 * radius:g} 0"


def _draw_edge(drawing: Drawing, start, end, label: str, colour: str, column: float) -> None:
    x1, y1 = start
    x2, y2 = end
    if start == end:  # a loop above
        tip = (x1 + 8, y1 - RADIUS + 2)
        bends = f"{x1 - 16:g} {y1 - 42:g} {x1 + 16:g} {y1 - 42:g}"
        path = f"M{x1 - 8:g} {tip[1]:g}C{bends} {tip[0]:g} {tip[1]:g}"
        drawing.arrow(path, tip, (-0.3, 1), colour)
        _label(drawing, x1, y1 - 40, label)
        return
    far = x2 <= x1 or x2 - x1 > 1.5 * column  # back, within a column, or past other states
    if not far:
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx = (x2 - x1) / length
        dy = (y2 - y1) / length
        tip = (x2 - dx * (RADIUS + 1), y2 - dy * (RADIUS + 1))
        path = f"M{x1 + dx * RADIUS:g} {y1 + dy * RADIUS:g}L{tip[0]:g} {tip[1]:g}"
        drawing.arrow(path, tip, (dx, dy), colour)
        _label(drawing, (x1 + x2) / 2, (y1 + y2) / 2 - 5, label)
        return
    side = 1 if x2 <= x1 else -1  # back under them, ahead above them
    bend = (max if side > 0 else min)(y1, y2) + side * (RADIUS + 40)
    tip = (x2, y2 + side * (RADIUS + 1))
    middle = (x1 + x2) / 2
    path = f"M{x1:g} {y1 + side * RADIUS:g}Q{middle:g} {bend:g} {tip[0]:g} {tip[1]:g}"
    drawing.arrow(path, tip, (x2 - middle, tip[1] - bend), colour)
    _label(drawing, middle, (y1 + y2 + 2 * side * RADIUS) / 4 + bend / 2 + 4, label)


def _label(drawing: Drawing, x: float, y: float, label: str, fill: str = INK) -> None:
    width = text_width(label, 11) + 4
    drawing.rect(x - width / 2, y - 10, width, 12, fill=PAPER, fill_opacity=0.8)
    drawing.text(x, y, label, text_anchor="middle", font_size=11, fill=fill)


def _lines(dfa: DFA, edges, notes: Sequence[str], path: Sequence[int]) -> list[str]:
    lines = []
    for state in range(dfa.num_states):
        onward = [f"{label_of(data)} -> {b}" for (a, b), data in edges.items() if a == state]
        end = "(end)" if dfa.accepting[state] else ""
        note = f"  [{notes[state]}]" if state < len(notes) else ""
        lines.append(f"{state:2d} {end:5s} {', '.join(onward) or '-'}{note}")
    if path:
        lines.append("path: " + " ".join(map(str, path)))
    return lines
