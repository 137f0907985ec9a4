"""Table strip: the block tables of one request in several steps, and in several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.blocks.snapshot import HeldBlock, SequenceTable, choose, take_snapshot
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, NOBODY, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, PAPER
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import count, pad
from minivllm.trace import Trace
from minivllm.utils.validation import check

MOST_STEPS = 12
HEAD = 24  # of a run's name
ROW = 22
GAP = 8  # below the rows of a step
CHIP = 26
CHIP_HEIGHT = 18
SPACE = 3  # between two chips
STEP = 60  # width of "step 12"
NARROW = 20  # chips that have no room for a number
TOTAL = 62  # width of "12 blocks"


@dataclass(frozen=True)
class Line:
    """The tables of the request in one step of a run."""

    run: str
    step: int
    tables: list[SequenceTable]

    @property
    def num_held(self) -> int:
        return sum(len(table.blocks) - table.num_left for table in self.tables)

    @property
    def height(self) -> float:
        return max(1, len(self.tables)) * ROW + GAP


def table_strip(
    runs: Mapping[str, Trace],
    seq_id: str,
    steps: Sequence[int],
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw a request's block tables, a row for each step and KV cache group.

    A box is an entry with its block; a thick black edge is one that the step added, an empty dotted
    one is null: a sliding window has left it behind. If it did so in this step, its edge is dashed.

    Args:
        runs: what engines wrote, by name; each has the request.
        seq_id: of a sequence.
        steps: which ones, at most 12, after their planning.
        title, mark: what it shows, and rows to point at: (run, step, text).

    Raises:
        ValueError: without runs or steps, for too many, or for a sequence or step that a run lacks.
    """
    check(len(runs) > 0, "runs", runs, "at least one")
    check(0 < len(steps) <= MOST_STEPS, "steps", steps, f"a list of 1 to {MOST_STEPS} steps")
    lines = [
        Line(name, step, choose(take_snapshot(trace, step, "schedule"), [seq_id]))
        for name, trace in runs.items()
        for step in steps
    ]
    told = {
        name: ", ".join(str(line.num_held) for line in lines if line.run == name) for name in runs
    }
    head = f"Block tables of {seq_id} in steps {', '.join(map(str, steps))}"
    facts = "blocks held: " + " · ".join(f"{name} {numbers}" for name, numbers in told.items())
    alt = f"{head}; {facts.replace(' · ', '; ')}."
    return finish(_drawing(lines, head, facts, alt), _text(lines, head, facts), title, mark)


def _by_run(lines: list[Line]) -> Iterator[tuple[str, list[Line]]]:
    for name in dict.fromkeys(line.run for line in lines):
        yield name, [line for line in lines if line.run == name]


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(lines: list[Line], head: str, facts: str, alt: str) -> Drawing:
    tables = [table for line in lines for table in line.tables]
    names = [table.label.name for table in tables if table.label]
    left = MARGIN + STEP + max(map(text_width, names), default=0) + 10
    longest = max((len(table.blocks) for table in tables), default=1) or 1
    room = MAX_WIDTH - MARGIN - TOTAL - left
    chip = min(float(CHIP), room / longest - SPACE)
    right = left + longest * (chip + SPACE) + TOTAL
    num_runs = len(list(_by_run(lines)))
    bottom = HEADER_HEIGHT + num_runs * HEAD + sum(line.height for line in lines)
    drawing = sheet(head, facts, alt, right=right, bottom=bottom, legend=_legend(tables))
    y = float(HEADER_HEIGHT)
    for name, some in _by_run(lines):
        drawing.text(MARGIN, y + 15, name, font_weight="bold")
        y += HEAD
        for line in some:
            drawing.text(MARGIN, y + 13, f"step {line.step}", fill=GREY)
            drawing.place((name, line.step), left, y, right - left, line.height - GAP)
            for row, table in enumerate(line.tables):
                _draw_table(drawing, table, x=left, y=y + row * ROW, chip=chip)
            held = count(line.num_held, "block")
            drawing.text(right, y + 13, held, fill=GREY, text_anchor="end")
            y += line.height
    return drawing


def _draw_table(drawing: Drawing, table: SequenceTable, x: float, y: float, chip: float) -> None:
    if table.label is not None:
        drawing.text(MARGIN + STEP, y + 13, table.label.name, fill=GREY)
    for block in table.blocks:
        left = x + block.logical * (chip + SPACE)
        fill = PAPER if block.is_null else block.owner.light
        drawing.rect(left, y, chip, CHIP_HEIGHT, rx=3, fill=fill, **_edge(block))
        if not block.is_null and chip >= NARROW:
            middle = {"font_size": 11, "text_anchor": "middle"}
            drawing.text(left + chip / 2, y + 13, block.block_id, chip - 4, **middle)


def _edge(block: HeldBlock) -> dict[str, str | float]:
    if block.is_null:
        return look.LEFT_BEHIND if block.was is None else look.GIVEN_BACK
    return look.outline(block.is_new, block.owner.edge)


def _legend(tables: list[SequenceTable]) -> list:
    blocks = [block for table in tables for block in table.blocks]
    entries = [(box_swatch(fill=NOBODY.light, stroke=NOBODY.edge), "a block (its number)")]
    if any(block.is_new for block in blocks):
        entries.append((look.changed_swatch, "new in this step"))
    return entries + look.legend_of_nulls(blocks)


# -- in characters -------------------------------------------------------------------------------


def _text(lines: list[Line], head: str, facts: str) -> str:
    told = [head, facts]
    names = [table.label.name for line in lines for table in line.tables if table.label]
    width = max(map(len, names), default=-2) + 2
    for name, some in _by_run(lines):
        told += ["", name]
        for line in some:
            step = f"step {line.step}"
            for table in line.tables:
                label = table.label.name if table.label else ""
                entries = ["·" if block.is_null else str(block.block_id) for block in table.blocks]
                told.append(f"  {pad(step, 10)}{pad(label, width)}{' '.join(entries)}".rstrip())
                step = ""
    return "\n".join([*told, "", "· null: left behind by a window"])
