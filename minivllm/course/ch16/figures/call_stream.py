"""Call stream: pieces of a text go into a tool parser, pieces of a message come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import MONO, MONO_EM, Drawing, text_width
from minivllm.utils.validation import check

ROW = 22
BOX = 18
STATE_WIDTH = 84
GAP = 8
MOST = 40  # characters of a piece that are drawn
COLOURS = {"content": OKABE_ITO[4], "call": OKABE_ITO[1], "arguments": OKABE_ITO[2]}

Given = list[tuple[str, str]]  # of which kind, and what: a row's right side
Row = tuple[str, str, Given]  # the piece, the parser's state after it, what it gave out


class StreamingParser(Protocol):
    """Methods of a tool parser that are needed here. (The server's own class is out of reach.)"""

    whole: list[int]

    @property
    def state(self) -> str: ...

    def extract_tool_calls_streaming(self, delta_text: str) -> list[Any]: ...

    def finish(self) -> list[Any]: ...


def call_stream(
    parser: StreamingParser, pieces: Sequence[str], title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a row for each piece: what came, what the parser is in, and what it gave out.

    Args:
        parser: a fresh one; it is fed with the pieces, and then told that the text has ended.
        pieces: of the text, in order.
        title, mark: what it shows, and pieces to point at: (number, text).

    Raises:
        ValueError: if there is no piece.
    """
    check(len(pieces) > 0, "pieces", pieces, "at least one")
    rows = follow(parser, pieces)
    calls = "1 whole call" if len(parser.whole) == 1 else f"{len(parser.whole)} whole calls"
    name = f"{len(pieces)} pieces of a text, {calls}"
    facts = _facts(rows)
    shown = [_shown(piece) for piece, _, _ in rows]
    piece_width = MONO_EM * 12 * max(map(len, shown)) + 2 * GAP
    left = MARGIN + 30
    middle = left + piece_width + GAP
    right = middle + STATE_WIDTH + GAP
    given_width = max(sum(_width(what) + GAP for what in given) for _, _, given in rows)
    bottom = HEADER_HEIGHT + 20 + ROW * len(rows) + MARGIN / 2
    drawing = sheet(name, facts, f"{name}; {facts}.", right + given_width, bottom)
    heads = ((left, "in: the text"), (middle, "state"), (right, "out: the message"))
    for x, head in heads:
        drawing.text(x, HEADER_HEIGHT + 10, head, fill=GREY)
    for line, ((_, state, given), text) in enumerate(zip(rows, shown, strict=True)):
        y = HEADER_HEIGHT + 20 + ROW * line
        number = "end" if line == len(pieces) else line + 1
        drawing.text(left - GAP, y + 13, number, fill=GREY, text_anchor="end")
        if line < len(pieces):
            drawing.rect(left, y, piece_width, BOX, rx=2, fill=PAPER, stroke=LINE)
            drawing.text(left + GAP, y + 13, text, font_family=MONO)
        drawing.rect(middle, y, STATE_WIDTH, ROW, fill=COLOURS[state], fill_opacity=0.35)
        drawing.text(middle + STATE_WIDTH / 2, y + 15, state, text_anchor="middle")
        drawing.place((line + 1,), left, y - 1, middle + STATE_WIDTH - left, ROW - 2)
        x = right
        for kind, what in given:
            _draw_given(drawing, x, y, kind, what)
            x += _width((kind, what)) + GAP
    return finish(drawing, _as_text(name, facts, rows), title, mark)


def follow(parser: StreamingParser, pieces: Sequence[str]) -> list[Row]:
    """Feed a parser: a row for each piece, and one for the end if that gives out something."""
    rows = []
    for piece in pieces:
        given = _given(parser.extract_tool_calls_streaming(piece))
        rows.append((piece, parser.state, given))
    last = _given(parser.finish())
    return [*rows, ("", parser.state, last)] if last else rows


def _given(deltas: list[Any]) -> Given:
    found = []
    for delta in deltas:
        if isinstance(delta, str):
            found.append(("content", delta))
        elif delta.name is not None:
            found.append(("name", delta.name))
        else:
            found.append(("arguments", delta.arguments))
    return found


def _facts(rows: list[Row]) -> str:
    """Pieces of each kind that were given out, and the one with which the first name came."""
    kinds = [kind for _, _, given in rows for kind, _ in given]
    facts = f"given out: {kinds.count('content')} × content, {kinds.count('name')} × name, "
    facts += f"{kinds.count('arguments')} × arguments"
    lines = (n for n, (_, _, given) in enumerate(rows, 1) if "name" in dict(given))
    first = next(lines, None)
    return facts if first is None else f"{facts}; the first name with piece {first}"


def _shown(text: str) -> str:
    """On one line, blanks at its ends as dots; the middle of a long one is left out."""
    inner = text.strip(" ")
    begin = text.find(inner)
    end = len(text) - begin - len(inner)
    line = "·" * begin + repr(inner)[1:-1] + "·" * end
    return line if len(line) <= MOST else f"{line[: MOST // 2]}…{line[-MOST // 2 :]}"


def _width(given: tuple[str, str]) -> float:
    kind, what = given
    return text_width(kind + "  ") + 12 * MONO_EM * len(_shown(what)) + 2 * GAP


def _draw_given(drawing: Drawing, x: float, y: float, kind: str, what: str) -> None:
    colour = COLOURS["call" if kind == "name" else kind]
    drawing.rect(x, y, _width((kind, what)), BOX, rx=2, fill=PAPER, stroke=colour, stroke_width=2)
    drawing.text(x + GAP, y + 13, kind, fill=GREY)
    left = x + GAP + text_width(kind + "  ")
    drawing.text(left, y + 13, _shown(what), font_family=MONO)


def _as_text(title: str, facts: str, rows: list[Row]) -> str:
    widest = max(len(repr(piece)) for piece, _, _ in rows)
    lines = [title, facts]
    for piece, state, given in rows:
        out = "  ".join(f"{kind} {what!r}" for kind, what in given)
        text = repr(piece) if piece else "(end)"
        lines.append(f"{text:{widest}}  {state:9}  {out}".rstrip())
    return "\n".join(lines)
