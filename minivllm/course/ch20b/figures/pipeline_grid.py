"""Pipeline grid: stages by calls of the engine, with the batch that each works on, and bubbles."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.course.ch20b.figures.pipeline_model import (
    Pipeline,
    batch_label,
    calls_label,
    read_pipeline,
)
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import count, pad
from minivllm.trace import Trace
from minivllm.utils.validation import check

# Sizes in pixels.
NAMES = 66
ROW = 30
NARROWEST = 22
WIDEST = 54


def pipeline_grid(
    trace: Trace, first: int | None = None, last: int | None = None, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw what each stage of a pipeline computes, call by call of the engine.

    A cell has the letters of its batch's requests; a stage that has nothing to compute is hatched.

    Args:
        trace: what the engine wrote.
        first, last: calls (steps of the trace), both included; None is the first and the last.
        title, mark: what it shows, and cells to point at: (stage, call, text).

    Raises:
        ValueError: for calls that the trace does not have, or too many of them.
    """
    pipeline = read_pipeline(trace, first, last)
    most = (MAX_WIDTH - 2 * MARGIN - NAMES) // NARROWEST
    num_calls = pipeline.last - pipeline.first + 1
    check(num_calls <= most, "last", last, f"at most {most} calls from the first, not {num_calls}")
    head = f"Pipeline, {calls_label(pipeline)}"
    share = pipeline.num_busy / pipeline.num_cells
    facts = (
        f"{count(pipeline.num_stages, 'stage')} · {pipeline.num_busy} of {pipeline.num_cells} "
        f"cells compute something ({share:.0%})"
    )
    rows = [_row(pipeline, stage) for stage in range(pipeline.num_stages)]
    alt = f"{head}. {facts}. " + ". ".join(
        f"Stage {stage}: {', '.join(_runs(labels))}" for stage, labels in enumerate(rows)
    )
    drawing = _drawing(pipeline, rows, (head, facts, f"{alt}."))
    return finish(drawing, _text(pipeline, rows, head, facts), title, mark)


def _row(pipeline: Pipeline, stage: int) -> list[str]:
    """Labels of a stage's cells; "" is a bubble."""
    calls = range(pipeline.first, pipeline.last + 1)
    return [batch_label(pipeline.batch(stage, call)) for call in calls]


def _runs(labels: list[str]) -> list[str]:
    """The labels in words, equal neighbours as one."""
    told: list[tuple[str, int]] = []
    for label in labels:
        if told and told[-1][0] == label:
            told[-1] = label, told[-1][1] + 1
        else:
            told.append((label, 1))
    return [
        (label or "idle") + (f" {number} times" if number > 1 else "") for label, number in told
    ]


def _drawing(pipeline: Pipeline, rows: list[list[str]], words: tuple[str, str, str]) -> Drawing:
    num_calls = len(rows[0])
    left = MARGIN + NAMES
    widest = max(text_width(label, 11) for labels in rows for label in labels) + 8
    room = (MAX_WIDTH - MARGIN - left) / num_calls
    cell = int(min(room, max(NARROWEST, min(WIDEST, widest))))
    top = HEADER_HEIGHT + 14
    bottom = top + ROW * len(rows) + 8
    legend = [(box_swatch(fill="#dadada", stroke=GREY), "computes the batch of these requests"),
              (box_swatch(True, stroke=LINE), "bubble: nothing to compute")]  # fmt: skip
    drawing = sheet(*words, left + cell * num_calls, bottom, legend)
    every = next(n for n in (1, 2, 5, 10) if n * cell >= 22)
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        drawing.text(left - 22, HEADER_HEIGHT + 8, "call")
        for index, call in enumerate(range(pipeline.first, pipeline.last + 1)):
            if call % every == 0:
                drawing.text(left + cell * (index + 0.5), HEADER_HEIGHT + 8, call)
    for stage, labels in enumerate(rows):
        y = top + ROW * stage
        drawing.text(MARGIN, y + 19, f"stage {stage}", font_weight="bold")
        for index, label in enumerate(labels):
            call = pipeline.first + index
            x = left + cell * index
            batch = pipeline.batch(stage, call)
            look = (
                {"fill": batch[0].light, "stroke": batch[0].edge}
                if batch
                else {"fill": PAPER, "stroke": LINE}
            )
            drawing.rect(x + 1, y + 1, cell - 2, ROW - 2, rx=2, **look)
            drawing.place((stage, call), x + 1, y + 1, cell - 2, ROW - 2)
            if batch:
                drawing.text(x + cell / 2, y + 19, label, cell - 4, font_size=11, fill=INK,
                             text_anchor="middle")  # fmt: skip
            else:
                drawing.hatch(x + 1, y + 1, cell - 2, ROW - 2)
    return drawing


def _text(pipeline: Pipeline, rows: list[list[str]], head: str, facts: str) -> str:
    width = max(len(label) for labels in rows for label in labels)
    width = max(width, len(str(pipeline.last))) + 1
    calls = range(pipeline.first, pipeline.last + 1)
    lines = [head, facts, "", pad("call", 9) + "".join(pad(str(call), width) for call in calls)]
    for stage, labels in enumerate(rows):
        cells = "".join(pad(label or "░", width) for label in labels)
        lines.append(pad(f"stage {stage}", 9) + cells)
    lines += ["", "░ bubble: nothing to compute"]
    return "\n".join(line.rstrip() for line in lines)
