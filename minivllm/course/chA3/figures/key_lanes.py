"""Key lanes: keys as they are in a block, and transposed, a key in each lane."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, Owner, nth_owner
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.utils.validation import check, is_int

CELL = 34
HEIGHT = 22
NAMES = 50
GAP = 70
SHOWN = 4  # numbers of a key that are drawn; then come dots, and the last one
MOST = 8  # lanes


def key_lanes(
    num_keys: int, head_dim: int, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw a vector's keys twice: a row for each as a block has them, then a lane for each.

    Args:
        num_keys: keys, and lanes of a vector.
        head_dim: numbers of a key; the first four and the last are drawn.
        title, mark: what it shows, and rows to point at: ("block", key, text), ("lanes", number,
            text) or ("scores", text).

    Raises:
        ValueError: for other than 1 to 8 keys, or fewer than 6 numbers.
    """
    check(is_int(num_keys, 1) and num_keys <= MOST, "num_keys", num_keys, f"1 to {MOST}")
    check(is_int(head_dim, SHOWN + 2), "head_dim", head_dim, f"at least {SHOWN + 2}")
    numbers = [*range(SHOWN), None, head_dim - 1]  # None: those that are left out
    owners = [nth_owner(f"k{key}", key) for key in range(num_keys)]
    head = "Keys in a block, and in lanes"
    facts = f"{num_keys} keys of {head_dim} numbers; a cell has the place of a number in its key"
    top = HEADER_HEIGHT + 38
    left = MARGIN + NAMES
    right = left + CELL * len(numbers) + GAP + NAMES
    rows = max(num_keys, len(numbers) + 1)
    drawing = sheet(
        head, facts, f"{head}: {facts}.",
        right=right + CELL * num_keys, bottom=top + HEIGHT * rows + 14,
    )  # fmt: skip
    drawing.text(left, top - 22, "in the block: a key after the other", font_weight="bold")
    for key, owner in enumerate(owners):
        y = top + HEIGHT * key
        drawing.text(left - 8, y + 15, f"key {key}", text_anchor="end")
        for column, number in enumerate(numbers):
            _draw_number(drawing, owner, number, left + CELL * column, y)
        drawing.place(("block", key), left, y, CELL * len(numbers), HEIGHT)
    drawing.text(right, top - 22, "in lanes: a number of every key", font_weight="bold")
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        for key in range(num_keys):
            drawing.text(right + CELL * (key + 0.5), top - 6, f"key {key}", CELL - 2)
    for row, number in enumerate(numbers):
        y = top + HEIGHT * row
        for key, owner in enumerate(owners):
            _draw_number(drawing, owner, number, right + CELL * key, y)
        if number is not None:
            drawing.place(("lanes", number), right, y, CELL * num_keys, HEIGHT)
    y = top + HEIGHT * len(numbers) + 6
    drawing.text(right - 8, y + 15, "scores", text_anchor="end", font_weight="bold")
    for key, owner in enumerate(owners):
        x = right + CELL * key
        look = {"fill": owner.solid, "stroke": owner.edge}
        drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, **look)
    drawing.place(("scores",), right, y, CELL * num_keys, HEIGHT)
    places = " ".join("..." if number is None else str(number) for number in numbers)
    text = [head, facts, ""]
    text += [f"key {key}: {places}" for key in range(num_keys)]
    text += ["", f"lane:  {' '.join(f'key {key}' for key in range(num_keys))}"]
    text += [
        "..." if number is None else f"{number:<7d}{'     '.join([str(number)] * num_keys)}"
        for number in numbers
    ]
    return finish(drawing, "\n".join(text), title, mark)


def _draw_number(drawing: Drawing, owner: Owner, number: int | None, x: float, y: float) -> None:
    if number is None:
        drawing.text(x + CELL / 2, y + 14, "…", text_anchor="middle", fill=GREY)
        return
    look = {"fill": owner.light, "stroke": owner.edge, "stroke_width": 0.8}
    drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, **look)
    drawing.text(x + CELL / 2, y + 15, number, text_anchor="middle", font_size=11)
