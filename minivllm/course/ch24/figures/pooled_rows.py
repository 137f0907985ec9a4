"""Pooled rows: the rows of a step, prompt after prompt, and which of them each method keeps."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, ON_DARK, PAPER, letter
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check

NAMES = 64
BOX = 22
WIDEST = 34
NARROWEST = 16
LINE_HEIGHT = 34
METHODS = ("LAST", "CLS", "MEAN", "ALL")

Chunk = tuple[int, int, int]  # first and last position + 1 of a prompt in the step, its length


def pooled_rows(
    chunks: Sequence[Chunk],
    methods: Sequence[str] = METHODS,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw the rows of a step, and below them, for each method, what becomes of each row.

    Args:
        chunks: of each prompt, in the batch's order, the positions that are in the step, from and
            up to, and its length: (0, 5, 5) is whole.
        methods: "LAST", "CLS", "MEAN" or "ALL".
        title, mark: what it shows, and rows to point at: (method or "step", prompt's letter,
            position, text).

    Raises:
        ValueError: for no rows or too many, or for an unknown method.
    """
    num_rows = sum(end - start for start, end, _ in chunks)
    most = (MAX_WIDTH - 2 * MARGIN - NAMES) // NARROWEST
    check(0 < num_rows <= most, "chunks", chunks, f"1 to {most} rows")
    unknown = [method for method in methods if method not in METHODS]
    check(not unknown, "methods", methods, f"of {', '.join(METHODS)}")
    head = "Rows of a step, and what each method keeps"
    facts = f"{count(len(chunks), 'prompt')}, {count(num_rows, 'row')}"
    lines = ["step  " + _words(chunks, lambda chunk, position: str(position))]
    lines += [
        f"{method:6}" + _words(chunks, lambda *at, m=method: SIGNS[fate(m, *at)])
        for method in methods
    ]
    box = min(WIDEST, (MAX_WIDTH - 2 * MARGIN - NAMES) / num_rows)
    legend = [
        (box_swatch(fill=OKABE_ITO[0]), "in the vector"),
        (box_swatch(fill="#cfe3f1", stroke=OKABE_ITO[0]), "kept until the prompt is complete"),
        (box_swatch(hatched=True, stroke=LINE), "refused: the prompt is not whole"),
        (box_swatch(fill=PAPER, stroke=LINE), "dropped"),
    ]  # fmt: skip
    top = HEADER_HEIGHT + 20
    drawing = sheet(
        head,
        facts,
        f"{head}. {'; '.join(lines)}.",
        right=MARGIN + NAMES + num_rows * box,
        bottom=top + (1 + len(methods)) * LINE_HEIGHT,
        legend=legend,
    )
    for number, name in enumerate(["step", *methods]):
        y, x = top + number * LINE_HEIGHT, MARGIN + NAMES
        drawing.text(MARGIN, y + 15, name, font_weight="bold")
        for index, chunk in enumerate(chunks):
            if number == 0:
                drawing.text(x + 2, y - 6, _name(index, chunk), fill=GREY, font_size=11)
            for position in range(*chunk[:2]):
                colour = OKABE_ITO[index % len(OKABE_ITO)]
                look = {"fill": PAPER, "stroke": colour, "stroke_width": 2}
                what = "" if number == 0 else fate(name, chunk, position)
                if number:
                    look = dict(LOOKS[what])
                drawing.rect(x + 1, y, box - 2, BOX, rx=2, **look)
                if what == "refused":
                    drawing.hatch(x + 1, y, box - 2, BOX)
                ink = ON_DARK if what == "taken" else GREY if what else INK
                drawing.text(x + box / 2, y + 15, position, fill=ink, font_size=11,
                             text_anchor="middle")  # fmt: skip
                drawing.place((name, letter(index), position), x + 1, y, box - 2, BOX)
                x += box
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)


LOOKS = {
    "taken": {"fill": OKABE_ITO[0]},
    "kept": {"fill": "#cfe3f1", "stroke": OKABE_ITO[0]},
    "refused": {"fill": PAPER, "stroke": LINE},
    "dropped": {"fill": PAPER, "stroke": LINE},
}
SIGNS = {"taken": "#", "kept": "+", "refused": "x", "dropped": "."}


def fate(method: str, chunk: Chunk, position: int) -> str:
    """Return what a method does with a row: taken, kept, refused or dropped."""
    start, end, length = chunk
    if method in ("CLS", "MEAN"):
        if (start, end) != (0, length):
            return "refused"
        return "taken" if method == "MEAN" or position == 0 else "dropped"
    if method == "ALL":
        return "taken" if end == length else "kept"
    return "taken" if position == length - 1 else "dropped"


def _name(index: int, chunk: Chunk) -> str:
    start, end, length = chunk
    if end - start < 4:  # there is no room for more
        return letter(index)
    return letter(index) if (start, end) == (0, length) else f"{letter(index)}, of {length}"


def _words(chunks: Sequence[Chunk], sign) -> str:
    """One line of text: the sign of each row, prompt by prompt."""
    return "   ".join(
        f"{letter(index)} " + " ".join(f"{sign(chunk, at):>2}" for at in range(*chunk[:2]))
        for index, chunk in enumerate(chunks)
    )
