"""Step tensors: what the model gets for a step, tensor by tensor and column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, PAPER, Owner, letter, nth_owner
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check

CELL = 44
HEIGHT = 22
NAMES = 100
STEP_GAP = 30
FLAT = ("input_ids", "positions", "slot_mapping")  # a number for each row of the batch


@dataclass(frozen=True)
class _Step:
    """The tensors of one step as lists; ``owners`` has the sequence of each row of the batch."""

    name: str
    flat: dict[str, list[int]]
    owners: list[int]
    block_table: list[list[int]]
    num_blocks: list[int]  # of each sequence; what is behind them in its row is padding

    @property
    def num_columns(self) -> int:
        return max(len(self.owners), len(self.block_table[0]))


def step_tensors(
    steps: Mapping[str, Any], block_size: int, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw the tensors that describe the batches of some steps, below each other.

    Args:
        steps: by name, what ``ModelRunner.prepare_inputs`` returns: token ids and positions
            ``[num_tokens]``, and the attention metadata of the only KV cache group.
        block_size: slots per block.
        title, mark: what it shows, and numbers to point at: (step, "input_ids", "positions" or
            "slot_mapping", column, text) or (step, "block_table", row, column, text).

    Raises:
        ValueError: if there is no step.
    """
    check(len(steps) > 0, "steps", steps, "at least one step")
    read = [_read(name, inputs, block_size) for name, inputs in steps.items()]
    head = "The tensors of a step" if len(read) == 1 else "The tensors of some steps"
    facts = " · ".join(f"{it.name}: {count(len(it.owners), 'row')}" for it in read)
    widest = max(it.num_columns for it in read)
    heights = [HEIGHT * (len(FLAT) + len(it.block_table)) + STEP_GAP + 8 for it in read]
    drawing = sheet(
        head, facts, f"{head}. {facts.replace(' · ', '; ')}.",
        right=MARGIN + NAMES + CELL * widest, bottom=HEADER_HEIGHT + sum(heights),
    )  # fmt: skip
    y = float(HEADER_HEIGHT)
    text = [head, facts]
    for it, height in zip(read, heights, strict=True):
        drawing.text(MARGIN, y + 14, it.name, font_weight="bold")
        _draw_step(drawing, it, y + 22)
        text += ["", it.name]
        text += [f"{name:13s}" + _numbers(values) for name, values in it.flat.items()]
        for number, row in enumerate(it.block_table):
            text.append(f"{'' if number else 'block_table':13s}" + _numbers(row))
        y += height
    return finish(drawing, "\n".join(text), title, mark)


def _read(name: str, inputs: Any, block_size: int) -> _Step:
    token_ids, positions, (metadata,) = inputs
    starts = metadata.query_start_loc.tolist()
    lengths = metadata.seq_lens.tolist()
    return _Step(
        name=name,
        flat=dict(zip(FLAT, (t.tolist() for t in (token_ids, positions, metadata.slot_mapping)),
                      strict=True)),
        owners=[i for i in range(len(lengths)) for _ in range(starts[i], starts[i + 1])],
        block_table=metadata.block_table.tolist(),
        num_blocks=[-(-length // block_size) for length in lengths],
    )  # fmt: skip


def _draw_step(drawing: Drawing, step: _Step, top: float) -> None:
    y = top
    for name, values in step.flat.items():
        drawing.text(MARGIN + NAMES - 8, y + 15, name, text_anchor="end")
        for column, value in enumerate(values):
            owner = _owner(step.owners[column])
            _draw_number(drawing, (step.name, name, column), owner, value, column, y)
        y += HEIGHT
    y += 8
    drawing.text(MARGIN + NAMES - 8, y + 15, "block_table", text_anchor="end")
    for row, (blocks, known) in enumerate(zip(step.block_table, step.num_blocks, strict=True)):
        bold = {"font_weight": "bold", "fill": _owner(row).edge}
        drawing.text(MARGIN, y + 15, letter(row), **bold)
        for column, block in enumerate(blocks):
            owner = _owner(row) if column < known else None
            place = (step.name, "block_table", row, column)
            _draw_number(drawing, place, owner, block, column, y)
        y += HEIGHT


def _draw_number(
    drawing: Drawing, place: tuple, owner: Owner | None, value: int, column: int, y: float
) -> None:
    """A number in its sequence's colour; without an owner it is padding."""
    x = MARGIN + NAMES + CELL * column
    look = {"fill": PAPER, "stroke": LINE}
    if owner is not None:
        look = {"fill": owner.light, "stroke": owner.edge, "stroke_width": 0.8}
    drawing.rect(x + 1, y + 1, CELL - 2, HEIGHT - 2, rx=2, **look)
    ink = {} if owner is not None else {"fill": GREY}
    drawing.text(x + CELL / 2, y + 15, value, CELL - 6, text_anchor="middle", **ink)
    drawing.place(place, x, y, CELL, HEIGHT)


def _owner(row: int) -> Owner:
    """Sequences have letters and colours by their order in the batch."""
    return nth_owner(letter(row), row)


def _numbers(values: Sequence[int]) -> str:
    return "".join(f"{value:>6}" for value in values)
