"""Pushed error: a row of weights while GPTQ rounds it, a line for each column that is done."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, ON_DARK, PAPER
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check

# Sizes in pixels.
NAMES = 110
CELL = 82
ROW = 28
GAP = 6

DONE = OKABE_ITO[0]
MOVED = "#fbe0b3"


def pushed_error(
    steps: Sequence[Sequence[float]], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw a row of weights once for each step.

    Args:
        steps: the weights at the start, then after each column is rounded: step k has k rounded
            columns, and behind them those that are still to be rounded.
        title, mark: what it shows, and numbers to point at: (step, column, text).

    Raises:
        ValueError: unless there is a step more than a row has columns.
    """
    columns = len(steps[0]) if steps else 0
    ok = columns > 0 and len(steps) == columns + 1 and all(len(row) == columns for row in steps)
    check(ok, "steps", steps, "rows of the same length, one more than it")
    steps = [[weight + 0.0 for weight in row] for row in steps]  # no -0.0
    head = "A row while it is rounded"
    facts = f"{count(columns, 'column')}, one after the other"
    lines = []
    told = []
    for step, row in enumerate(steps):
        shown = [f"[{w:+.2f}]" if k < step else f"{w:+.2f}" for k, w in enumerate(row)]
        lines.append(f"{_name(step):15}" + "".join(f"{number:>9}" for number in shown))
        told.append(f"{_name(step)}: {', '.join(f'{w:+.2f}' for w in row)}")
    legend = [
        (box_swatch(fill=DONE), "rounded"),
        (box_swatch(fill=MOVED, stroke=LINE), "moved in this step"),
        (box_swatch(stroke=LINE), "as before"),
    ]  # fmt: skip
    top = HEADER_HEIGHT + 8
    drawing = sheet(
        head,
        facts,
        f"{head}. {'; '.join(told)}.",
        right=MARGIN + NAMES + columns * CELL,
        bottom=top + len(steps) * (ROW + GAP) + 4,
        legend=legend,
    )
    for step, row in enumerate(steps):
        y = top + step * (ROW + GAP)
        drawing.text(MARGIN, y + 18, _name(step), fill=GREY)
        for k, weight in enumerate(row):
            x = MARGIN + NAMES + k * CELL
            moved = k >= step > 0 and weight != steps[step - 1][k]
            fill = DONE if k < step else MOVED if moved else PAPER
            drawing.rect(x, y, CELL - GAP, ROW, rx=3, fill=fill, stroke=LINE)
            change = weight - steps[step - 1][k] if moved else 0
            words = f"{weight:+.2f}" + (" ↑" if change > 0 else " ↓" if change < 0 else "")
            ink = ON_DARK if k < step else INK
            drawing.text(x + (CELL - GAP) / 2, y + 18, words, fill=ink, text_anchor="middle")
            drawing.place((step, k), x, y, CELL - GAP, ROW)
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)


def _name(step: int) -> str:
    return "start" if step == 0 else f"after column {step - 1}"
