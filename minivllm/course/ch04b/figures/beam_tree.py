"""The beam tree: the beginnings that a beam search kept in each step, and those it dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.course.ch04b.figures.beam_model import Beam, BeamTree, read_beam_tree
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import (
    HEADER_HEIGHT,
    MARGIN,
    MAX_WIDTH,
    NOBODY,
    Swatch,
    box_swatch,
    sheet,
)
from minivllm.lab.viz.draw.palette import GREY, LINE, PAPER
from minivllm.lab.viz.draw.svg import MONO, MONO_EM, Drawing
from minivllm.lab.viz.draw.wording import count, token_label
from minivllm.trace import Trace

MAX_DEPTH = 20  # tokens; of longer beams only the beginning is drawn
ROOT_WIDTH = 52
ROW = 34
BOX_HEIGHT = 26
GAP = 26
WORD = 14  # size of a token in its box
LETTER_WIDTH = 18  # room of the place below it


def beam_tree(
    trace: Trace, request_id: str | None = None, decode: Callable[[int], str] | None = None,
    title: str | None = None, mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw the beams of a request as a tree: one token to the right in each step.

    A box is a beam after one step: the sequence that it was, and the token drawn last. A dashed box
    with its token struck out is a beam that no survivor continues; a thick edge is a text that the
    search returned. Equal beginnings are drawn once, as their blocks are stored once.

    Args:
        trace: what the engine wrote.
        request_id: whose beams; None is the first request with several sequences.
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: what it shows, and beams to point at: (sequence, number of tokens, text).

    Raises:
        ValueError: for a request that was never forked.
    """
    tree = read_beam_tree(trace, request_id)
    return finish(_drawing(tree, decode), _text(tree, decode), title, mark)


def _title(tree: BeamTree) -> str:
    return f"Beam tree of request {tree.request_id}"


def _facts(tree: BeamTree) -> str:
    beams = tree.beams
    dropped = sum(beam.is_dropped for beam in beams)
    kept = sum(beam.is_final for beam in beams)
    return f"{count(tree.depth, 'token')} · {dropped} dropped · {kept} kept to the end"


def _alt(tree: BeamTree) -> str:
    widest = max(
        sum(len(beam.tokens) == depth for beam in tree.beams) for depth in range(1, tree.depth + 1)
    )
    return f"{_title(tree)}: {_facts(tree).replace(' · ', ', ')}; at most {widest} beams at a time."


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(tree: BeamTree, decode: Callable[[int], str] | None) -> Drawing:
    depth = min(tree.depth, MAX_DEPTH)
    room = (MAX_WIDTH - 2 * MARGIN - ROOT_WIDTH) / depth - GAP
    longest = max(len(token_label(beam.tokens[-1], decode, 9)) for beam in tree.beams)
    box_width = min(room, max(56, longest * WORD * MONO_EM + LETTER_WIDTH + 10))
    heights = _rows(tree.root)
    right = MARGIN + ROOT_WIDTH + depth * (GAP + box_width)
    bottom = HEADER_HEIGHT + heights[()] * ROW + 8
    drawing = sheet(
        _title(tree), _facts(tree), _alt(tree), right=right, bottom=bottom, legend=_legend(tree)
    )
    drawing.rect(MARGIN, HEADER_HEIGHT, ROOT_WIDTH, BOX_HEIGHT, rx=4, fill="#eeeeee", stroke=LINE)
    with drawing.group(font_size=11, fill=GREY, text_anchor="middle"):
        drawing.text(MARGIN + ROOT_WIDTH / 2, HEADER_HEIGHT + 16, "prompt")
    x = MARGIN + ROOT_WIDTH
    _draw_children(
        drawing, tree.root, heights, x=x, y=HEADER_HEIGHT, width=box_width, decode=decode
    )
    return drawing


def _rows(root: Beam) -> dict[tuple[int, ...], int]:
    """Number of rows that each beam and its descendants take."""
    rows: dict[tuple[int, ...], int] = {}
    for beam in reversed(list(root.walk())):
        rows[beam.tokens] = max(1, sum(rows[child.tokens] for child in beam.children))
    return rows


def _draw_children(
    drawing: Drawing, beam: Beam, rows: dict[tuple[int, ...], int], x: float, y: float,
    width: float, decode: Callable[[int], str] | None,
) -> None:  # fmt: skip
    """A beam's continuations to its right, those that go on longest first."""
    if len(beam.tokens) == MAX_DEPTH:
        return
    start = y + BOX_HEIGHT / 2
    for child in sorted(beam.children, key=_length, reverse=True):
        end = y + BOX_HEIGHT / 2
        middle = x + GAP / 2
        line = {"stroke_dasharray": "3 3"} if child.is_dropped else {}
        d = f"M{x:g} {start:g}H{middle:g}V{end:g}H{x + GAP:g}"
        drawing.path(d, fill="none", stroke=GREY, stroke_width=1.3, **line)
        _draw_box(drawing, child, x=x + GAP, y=y, width=width, decode=decode)
        _draw_children(drawing, child, rows, x=x + GAP + width, y=y, width=width, decode=decode)
        y += rows[child.tokens] * ROW


def _length(beam: Beam) -> int:
    return max(len(one.tokens) for one in beam.walk())


def _draw_box(
    drawing: Drawing, beam: Beam, x: float, y: float, width: float,
    decode: Callable[[int], str] | None,
) -> None:  # fmt: skip
    owner = beam.owner
    label = token_label(beam.tokens[-1], decode, int((width - LETTER_WIDTH) / (WORD * MONO_EM)))
    title = f"step {beam.step}, {owner.letter}"
    drawing.place((owner.letter, len(beam.tokens)), x, y, width, BOX_HEIGHT)
    drawing.rect(x, y, width, BOX_HEIGHT, title, rx=4, **_look(beam, owner.light, owner.edge))
    place = {"font_size": 11, "fill": GREY, "text_anchor": "end"}
    drawing.text(x + width - 4, y + BOX_HEIGHT - 4, owner.letter, LETTER_WIDTH, **place)
    strike = {"text_decoration": "line-through", "fill": GREY} if beam.is_dropped else {}
    middle = x + (width - LETTER_WIDTH) / 2 + 2
    word = {"font_size": WORD, "font_family": MONO, "font_weight": "bold"}
    drawing.text(middle, y + 18, label, text_anchor="middle", **word, **strike)


def _look(beam: Beam, fill: str, edge: str) -> dict[str, str | float]:
    if beam.is_dropped:
        return {"fill": PAPER, "stroke": GREY, "stroke_dasharray": "3 3"}
    return {"fill": fill, "stroke": edge, "stroke_width": 2.5 if beam.is_final else 1}


def _kind(beam: Beam) -> tuple[bool, bool]:
    """The look of a beam's box, whatever its colour."""
    return beam.is_dropped, beam.is_final


def _legend(tree: BeamTree) -> list[tuple[Swatch, str]]:
    beams = tree.beams
    meanings = {
        "a beam: its last token, and small its sequence": Beam((), 0, None, children=beams),
        "dropped: nothing that was kept continues it": Beam((), 0, None),
        "returned": Beam((), 0, None, is_final=True),
    }
    entries = [
        (box_swatch(**_look(beam, NOBODY.light, NOBODY.edge)), text)
        for text, beam in meanings.items()
        if any(_kind(beam) == _kind(other) for other in beams)
    ]
    if tree.depth > MAX_DEPTH:
        entries.append((lambda *_: None, f"only the first {MAX_DEPTH} tokens are drawn"))
    return entries


# -- in characters -------------------------------------------------------------------------------


def _text(tree: BeamTree, decode: Callable[[int], str] | None) -> str:
    """A line for each beam that ends: its tokens, from where it leaves the line above."""
    lines = [_title(tree), _facts(tree), ""]
    width = max(len(token_label(beam.tokens[-1], decode, 9)) for beam in tree.beams) + 2
    shown = min(tree.depth, MAX_DEPTH, 84 // width)

    def write(beam: Beam, line: str) -> None:
        if beam.tokens and len(beam.tokens) <= shown:
            line += f"{token_label(beam.tokens[-1], decode, 9):>{width}}"
        if not beam.children:
            lines.append(f"prompt{line}{' ×' if beam.is_dropped else ' |'}".rstrip())
        children = sorted(beam.children, key=_length, reverse=True)
        for index, child in enumerate(children):
            write(child, line if index == 0 else " " * len(line))

    write(tree.root, "")
    first = lines.index(next(line for line in lines if line.startswith("prompt")))
    lines[first + 1 :] = [f"      {line[6:]}" for line in lines[first + 1 :]]
    cut = f"  (the first {shown} tokens)" if shown < tree.depth else ""
    return "\n".join([*lines, "", f"× dropped  | returned{cut}"])
