"""The flat batch of a step: what padding would cost, and which keys each row sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, NOBODY, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, PAPER, Owner, owners_of
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count
from minivllm.trace import Trace
from minivllm.trace.records import Scheduled
from minivllm.utils.validation import check, is_int

CELL = 26  # width, and of a mask height, too
HEIGHT = 24
NAMES = 64
MOST = 26  # keys, or tokens: more are too small to read


@dataclass(frozen=True)
class _Rows:
    """The rows of one sequence in a step: its positions from ``start`` on."""

    owner: Owner
    start: int
    num_rows: int

    @property
    def positions(self) -> range:
        return range(self.start, self.start + self.num_rows)

    def name(self, position: int) -> str:
        return f"{self.owner.letter}{position}"


def _rows_of(trace: Trace, step: int | None) -> list[_Rows]:
    """The rows that a step computes, in the order of its batch."""
    owners = owners_of(trace)
    plans = {record.step for record in trace.of(Scheduled)}
    step = max(plans, default=None) if step is None else step
    check(is_int(step) and step in plans, "step", step, "a step that computes something")
    return [
        _Rows(owners[it.seq_id], it.num_computed_tokens, it.num_tokens)
        for it in trace.of(Scheduled)
        if it.step == step
    ]


def padded_batch(
    trace: Trace, step: int | None = None, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw the tokens of a step as a rectangle with padding, and below it as a flat batch.

    Args:
        trace: what the engine wrote.
        step: the step; None is the last.
        title, mark: what it shows, and cells to point at: ("padded", sequence's letter, column,
            text) or ("flat", row, text).

    Raises:
        ValueError: for a step that computes nothing, or more than 26 tokens.
    """
    rows = _rows_of(trace, step)
    longest = max(it.num_rows for it in rows)
    total = sum(it.num_rows for it in rows)
    check(total <= MOST, "step", step, f"a step of at most {MOST} tokens")
    places = longest * len(rows)
    head = "A step's tokens, padded and flat"
    facts = f"padded: {places} places, {count(places - total, 'pad')} · flat: {total} places"
    flat_top = HEADER_HEIGHT + HEIGHT * len(rows) + 16
    drawing = sheet(
        head, facts, f"{head}. {facts.replace(' · ', '; ')}.",
        right=MARGIN + NAMES + CELL * max(total, longest), bottom=flat_top + HEIGHT + 10,
        legend=[(_cell_swatch, "token of this step"), (_pad_swatch, "pad: computed for nothing")]
        if places > total
        else (),
    )  # fmt: skip
    text = [head, facts, ""]
    names = [it.name(position) for it in rows for position in it.positions]
    for line, it in enumerate(rows):
        y = HEADER_HEIGHT + HEIGHT * line
        if line == 0:
            drawing.text(MARGIN, y + 16, "padded", font_weight="bold")
        for column in range(longest):
            x = MARGIN + NAMES + CELL * column
            if column < it.num_rows:
                _draw_token(drawing, it, it.start + column, x, y)
            else:
                drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, fill=PAPER, stroke=LINE)
                drawing.hatch(x + 1, y + 1, CELL - 2, HEIGHT - 2)
            drawing.place(("padded", it.owner.letter, column), x, y, CELL, HEIGHT)
        own = [it.name(position) for position in it.positions]
        cells = [*own, *["-"] * (longest - it.num_rows)]
        text.append("padded  " + "".join(f"{cell:>4}" for cell in cells))
    drawing.text(MARGIN, flat_top + 16, "flat", font_weight="bold")
    row = 0
    for it in rows:
        for position in it.positions:
            x = MARGIN + NAMES + CELL * row
            _draw_token(drawing, it, position, x, flat_top)
            drawing.place(("flat", row), x, flat_top, CELL, HEIGHT)
            row += 1
    text.append("flat    " + "".join(f"{name:>4}" for name in names))
    return finish(drawing, "\n".join(text), title, mark)


def step_mask(
    trace: Trace, step: int | None = None, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw which keys each row of a step sees: cached ones light, those of the step itself full.

    Args:
        trace: what the engine wrote.
        step: the step; None is the last.
        title, mark: what it shows, and cells to point at: (row, key, text), such as ("A8", "A0",
            "cached").

    Raises:
        ValueError: for a step that computes nothing, or that has more than 26 keys.
    """
    rows = _rows_of(trace, step)
    keys = [(it, position) for it in rows for position in range(it.start + it.num_rows)]
    check(len(keys) <= MOST, "step", step, f"a step whose rows see at most {MOST} keys")
    queries = [(it, position) for it in rows for position in it.positions]
    seen = sum(position + 1 for _, position in queries)
    cached = sum(it.start for it in rows)
    head = "Which key each row sees"
    facts = f"{count(len(queries), 'row')} · {count(cached, 'cached key')}, {len(queries)} new"
    facts += f" · {seen} of {len(queries) * len(keys)} pairs"
    top = HEADER_HEIGHT + 18
    left = MARGIN + NAMES - 24
    legend = [(_cached_swatch, "sees a cached key")] if cached else []
    legend.append((_cell_swatch, "sees a key of this step"))
    legend += (
        [(box_swatch(stroke=LINE), "does not see it")] if seen < len(queries) * len(keys) else []
    )
    drawing = sheet(
        head, facts, f"{head}. {facts.replace(' · ', '; ')}.",
        right=left + CELL * len(keys), bottom=top + HEIGHT * len(queries) + 10,
        legend=legend,
    )  # fmt: skip
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        for column, (owner, position) in enumerate(keys):
            drawing.text(left + CELL * (column + 0.5), top - 6, owner.name(position), CELL - 1)
    text = [head, facts, "", "    " + " ".join(f"{o.name(p):>3}" for o, p in keys)]
    for line, (it, position) in enumerate(queries):
        y = top + HEIGHT * line
        drawing.text(left - 6, y + 16, it.name(position), text_anchor="end", font_weight="bold")
        signs = []
        for column, (other, key) in enumerate(keys):
            x = left + CELL * column
            sees = other is it and key <= position
            look = {"fill": PAPER, "stroke": LINE, "stroke_width": 0.5}
            if sees:
                is_new = key >= it.start
                look = {"fill": it.owner.solid if is_new else it.owner.light,
                        "stroke": it.owner.edge, "stroke_width": 0.8}  # fmt: skip
            drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, **look)
            drawing.place((it.name(position), other.name(key)), x, y, CELL, HEIGHT)
            signs.append("  ." if not sees else "  #" if key >= it.start else "  o")
        text.append(f"{it.name(position):<4}" + " ".join(signs))
    text.append("\no sees a cached key  # sees a key of this step  . does not see it")
    return finish(drawing, "\n".join(text), title, mark)


def _draw_token(drawing: Drawing, it: _Rows, position: int, x: float, y: float) -> None:
    look = {"fill": it.owner.solid, "stroke": it.owner.edge, "stroke_width": 0.8}
    drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, **look)
    middle = {"text_anchor": "middle", "font_size": 11, "fill": it.owner.ink}
    drawing.text(x + CELL / 2, y + 16, it.name(position), CELL - 4, **middle)


_cell_swatch = box_swatch(fill=NOBODY.solid, stroke=NOBODY.edge)
_cached_swatch = box_swatch(fill=NOBODY.light, stroke=NOBODY.edge)
_pad_swatch = box_swatch(hatched=True, stroke=LINE)
