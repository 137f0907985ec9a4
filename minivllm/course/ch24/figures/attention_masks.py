"""Attention masks: which rows each row of a step sees, in a decoder and in an encoder."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO, PAPER, letter
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check, is_int

CELL = 20  # pixels, as the next two
GAP = 56
NAMES = 26
MOST = 16  # rows
MODELS = ("decoder", "encoder")


def attention_masks(
    lengths: Sequence[int], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw two squares: row i sees the rows whose cells are filled, from left to right.

    Args:
        lengths: of the prompts of the step.
        title, mark: what it shows, and cells to point at: ("decoder" or "encoder", row, row that
            is seen, text).

    Raises:
        ValueError: for lengths below 1, or more than 16 rows.
    """
    total = sum(lengths)
    ok = 0 < total <= MOST and all(is_int(length, 1) for length in lengths)
    check(ok, "lengths", lengths, f"lengths of at least 1, {MOST} rows in all")
    owners = [index for index, length in enumerate(lengths) for _ in range(length)]
    head = "What each row sees"
    facts = f"{count(len(lengths), 'prompt')}, {count(total, 'row')}"
    seen = {model: _seen(owners, model == "decoder") for model in MODELS}
    counts = {model: sum(map(len, rows)) for model, rows in seen.items()}
    alt = "; ".join(f"{model}: {number} pairs of rows" for model, number in counts.items())
    size = total * CELL
    top = HEADER_HEIGHT + 24
    right = MARGIN + 2 * (NAMES + size) + GAP
    drawing = sheet(head, facts, f"{head}. {alt}.", right, top + size + 24)
    lines = []
    for number, (model, rows) in enumerate(seen.items()):
        left = MARGIN + NAMES + number * (NAMES + size + GAP)
        drawing.text(left, top + size + 18, f"{model}: {counts[model]} pairs", font_weight="bold")
        lines.append(f"{model}: {counts[model]} pairs")
        for row, owner in enumerate(owners):
            name = f"{letter(owner)}{row - owners.index(owner)}"
            drawing.text(left - 6, top + row * CELL + 14, name, fill=GREY, font_size=11,
                         text_anchor="end")  # fmt: skip
            drawing.text(left + (row + 0.5) * CELL, top - 6, name, fill=GREY, font_size=11,
                         text_anchor="middle")  # fmt: skip
            for other in range(total):
                sees = other in rows[row]
                fill = OKABE_ITO[owner % len(OKABE_ITO)] if sees else PAPER
                x, y = left + other * CELL, top + row * CELL
                drawing.rect(x, y, CELL, CELL, fill=fill, stroke=LINE, stroke_width=0.5)
                drawing.place((model, row, other), x, y, CELL, CELL)
            cells = " ".join("#" if other in rows[row] else "." for other in range(total))
            lines.append(f"  {name} {cells}")
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)


def _seen(owners: Sequence[int], is_causal: bool) -> list[set[int]]:
    """The rows that each row sees: of its own prompt, in a decoder none behind it."""
    return [
        {j for j, other in enumerate(owners) if other == owner and (j <= i or not is_causal)}
        for i, owner in enumerate(owners)
    ]
