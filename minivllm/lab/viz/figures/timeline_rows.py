"""The rows of a timeline: a cell per request and step, or in a crowd a few long paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.layout import NOBODY, SWATCH_HEIGHT, SWATCH_WIDTH, Swatch, box_swatch
from minivllm.lab.viz.draw.palette import INK, LINE, PAPER, Owner
from minivllm.lab.viz.draw.step_axis import TOP, StepAxis, draw_name
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, span
from minivllm.lab.viz.model.timeline_model import Cell, TimelineWindow

MAX_CELLS = 300  # more than this are drawn as paths, without tooltips
MAX_LABELS = 600  # and more than this without their numbers and letters

# how thick a line is where there is no cell
THIN = {
    "prefill": 4.0, "verify": 2.6, "decode": 1.8, "receiving": 1.2, "sending": 1.2, "idle": 0.6,
}  # fmt: skip

DOTTED = {"stroke_dasharray": "1.5 2"}
AHEAD = DOTTED  # edge of a decode planned before its token was known
ARROWS = {"receiving": "↓", "sending": "↑"}
TOLD = {"receiving": "K and V come from elsewhere", "sending": "K and V are sent"}
DROPPED = {"stroke": INK, "stroke_width": 2, "stroke_dasharray": "3 3"}

Run = tuple[int, int, Cell]  # start, stop, and how it looks


class Rows:
    """Everything above the lanes.

    Args:
        window: what to draw.
        axis: where each step is.
    """

    def __init__(self, window: TimelineWindow, axis: StepAxis):
        self.window = window
        self.axis = axis
        heights = ((16, 24), (40, 16), (80, 12), (10**9, 4))
        self.height = next(height for most, height in heights if len(window.rows) <= most)
        self.runs = [list(self._runs(cells)) for _, cells in window.rows]
        self.num_runs = sum(map(len, self.runs))

    @property
    def bottom(self) -> float:
        return TOP + len(self.runs) * self.height

    @property
    def thin(self) -> bool:
        """Are rows so narrow that a cell becomes a line?"""
        return self.height < 12

    def draw(self, drawing: Drawing) -> None:
        for row, (owner, _) in enumerate(self.window.rows):
            y = TOP + row * self.height
            for step in range(self.window.first, self.window.last + 1):
                key = (owner.letter, step)
                drawing.place(key, self.axis.x(step), y, self.axis.width(step), self.height)
        if self.num_runs <= MAX_CELLS:
            self._draw_cells(drawing)
        else:
            self._draw_paths(drawing)

    def _runs(self, cells: dict[int, Cell]) -> Iterator[Run]:
        """Cells that are drawn as one rectangle: one, or equal neighbours."""

        def key(step: int):
            cell = cells.get(step, Cell())
            mark = (step, cell.preempted) if self.axis.separate else None
            return cell.kind, cell.is_placeholder, mark

        for (kind, *_), group in groupby(range(min(cells), max(cells) + 1), key):
            steps = list(group)
            if kind:
                yield steps[0], steps[-1] + 1, cells[steps[0]]

    def _label(self, owner: Owner, step: int, cell: Cell) -> str | None:
        gained = f"+{1 + cell.num_accepted}"
        labels = {"prefill": str(cell.num_tokens), "decode": owner.letter, "verify": gained}
        labels |= ARROWS
        label = labels.get(cell.kind)
        return label if label and not self.thin and self.axis.fits(label, step) else None

    def _box(self, run: Run, y: float) -> tuple[float, float, float, float]:
        x = self.axis.x(run[0])
        width = self.axis.x(run[1]) - x
        gap = min(1, width / 8) if self.axis.separate else 0
        inset = 1 if self.height > 4 else 0
        return x + gap, y + inset, width - 2 * gap, self.height - 2 * inset

    # -- one by one ------------------------------------------------------------------------------

    def _draw_cells(self, drawing: Drawing) -> None:
        y = TOP
        for (owner, cells), runs in zip(self.window.rows, self.runs, strict=True):
            self._draw_name(drawing, owner, y)
            with drawing.group(font_size=11, text_anchor="middle", stroke_width=0.8):
                for run in runs:
                    self._draw_run(drawing, owner, run, y)
            for step, cell in cells.items():
                self._draw_events(drawing, cell, step, y)
            y += self.height

    def _draw_run(self, drawing: Drawing, owner: Owner, run: Run, y: float) -> None:
        start, stop, cell = run
        left, top, width, height = self._box(run, y)
        steps = span(start, stop - 1)
        fill, stroke = _look(cell.kind, owner)
        noun = translated("step" if steps.isdigit() else "steps")
        tooltip = f"{owner.letter}, {noun} {steps}: "
        tooltip += TOLD.get(cell.kind) or translated(cell.kind)
        if self.axis.separate and cell.num_tokens:
            tooltip += f" of {count(cell.num_tokens, 'token')} from position {cell.start}"
            if cell.kind == "verify":
                tooltip += f", {count(cell.num_accepted, 'draft')} accepted"
        tooltip += ", planned before its token was known" * cell.is_placeholder
        look = {"rx": 2 * self.axis.separate, "fill": fill, "stroke": stroke}
        look |= DOTTED if cell.is_placeholder or cell.kind in ARROWS else {}
        drawing.rect(left, top, width, height, tooltip, **look)
        if cell.kind == "waiting" and not (cell.preempted and self.axis.separate):
            drawing.hatch(left, top, width, height)
        if label := self._label(owner, start, cell):
            bold = {"fill": owner.ink, "font_weight": "bold"} if cell.kind == "prefill" else {}
            middle = (self.axis.x(start) + self.axis.x(stop)) / 2
            drawing.text(middle, y + self.height / 2 + 4, label, **bold)

    def _draw_events(self, drawing: Drawing, cell: Cell, step: int, y: float) -> None:
        x = self.axis.x(step)
        right = self.axis.x(step + 1)
        if cell.preempted:
            size = min(18, max(11, self.height))
            draw_cross(drawing, (x + right) / 2, y + self.height / 2, size)
        for index, item in enumerate(cell.items if self.height >= 16 else ()):
            width = (right - x - 4) / len(cell.items)
            drawing.rect(
                x + 2 + index * width, y + self.height - 5, width, 4,
                f"placeholders of {item.letter} {item.seq_id}",
                fill=item.solid, stroke=item.edge, stroke_width=0.6,
            )  # fmt: skip
        if cell.is_wasted:
            box = x + 1, y + 1, right - x - 2, self.height - 2
            draw_wasted(drawing, box, "came after its end: wasted")
        if cell.dropped:
            d = f"M{right - 2:.2f} {y:g}v{self.height}"
            drawing.path(d, "dropped: a better beam takes its place", **DROPPED)
        if cell.finished:
            bar = min(4.0, max(2.0, (right - x) / 4))
            drawing.rect(
                right - bar, y, bar, self.height, f"finished: {cell.finish_reason}",
                fill=INK,
            )  # fmt: skip

    def _draw_name(self, drawing: Drawing, owner: Owner, y: float) -> None:
        """Letter and id; of rows that are too narrow, only some."""
        spacing = 12 if len(self.runs) <= 100 else 24
        if (y - TOP) / self.height % max(1, round(spacing / self.height)):
            return
        size = 13 if self.height >= 16 else 11
        baseline = y + max(self.height, 12) / 2 + size * 0.36
        draw_name(drawing, owner, baseline, size)

    # -- in a crowd ------------------------------------------------------------------------------

    def _draw_paths(self, drawing: Drawing) -> None:
        """One path for all cells that look the same: a tenth of the bytes."""
        looks = defaultdict(list)
        waits = []
        ends = []
        crosses = []
        wasted = []
        y = TOP
        for (owner, cells), runs in zip(self.window.rows, self.runs, strict=True):
            self._draw_name(drawing, owner, y)
            for run in runs:
                x, top, width, height = self._box(run, y)
                if run[2].kind == "waiting":
                    waits.append(f"M{x:.4g} {top:g}h{width:.4g}v{height:g}h-{width:.4g}z")
                elif self.thin:
                    d = f"M{x:.4g} {y + self.height / 2:g}h{width:.3g}"
                    looks[run[2].kind, owner.solid].append(d)
                else:
                    d = f"M{x:.4g} {top:g}h{width:.4g}v{height:g}h-{width:.4g}z"
                    looks[_look(run[2].kind, owner)].append(d)
            for step, cell in cells.items():
                x = self.axis.x(step)
                if cell.preempted:
                    crosses.append(f"M{x - 3:.4g} {y + self.height / 2 - 3:g}l6 6m0-6l-6 6")
                if cell.is_wasted:
                    box = x, y, self.axis.width(step), self.height
                    wasted.append(crossed_out(box))
                if cell.finished:
                    ends.append(f"M{self.axis.x(step + 1) - 1:.4g} {y:g}v{self.height}")
            y += self.height
        if waits:
            drawing.hatch_path("".join(waits))
        for (kind_or_fill, stroke), parts in looks.items():
            if self.thin:
                drawing.path("".join(parts), stroke=stroke, stroke_width=THIN[kind_or_fill])
            else:
                drawing.path("".join(parts), fill=kind_or_fill, stroke=stroke, stroke_width=0.5)
        if self.num_runs <= MAX_LABELS:
            self._draw_labels(drawing)
        drawing.path("".join(ends), stroke=INK, stroke_width=2)
        if wasted:
            drawing.path("".join(wasted), stroke=INK, stroke_width=1)
        if crosses:
            d = "".join(crosses)
            drawing.path(d, stroke=PAPER, stroke_width=3.5, fill="none")
            drawing.path(d, stroke=INK, stroke_width=1.6, fill="none")

    def _draw_labels(self, drawing: Drawing) -> None:
        y = TOP
        with drawing.group(font_size=11, text_anchor="middle"):
            for (owner, _), runs in zip(self.window.rows, self.runs, strict=True):
                for start, stop, cell in runs:
                    if label := self._label(owner, start, cell):
                        ink = {"fill": owner.ink} if cell.kind == "prefill" else {}
                        middle = (self.axis.x(start) + self.axis.x(stop)) / 2
                        drawing.text(middle, y + self.height / 2 + 4, label, **ink)
                y += self.height

    # -- explained -------------------------------------------------------------------------------

    def legend_entries(self, preempted: bool) -> list[tuple[Swatch, str]]:
        """Marks and their meanings; a prefill can be another where some run has preemptions."""
        cells = self.window.cells
        kinds = {cell.kind for cell in cells}
        labels = self.num_runs <= MAX_LABELS and any(
            self._label(NOBODY, start, cell)
            for runs in self.runs
            for start, _, cell in runs
            if cell.kind == "prefill"
        )
        numbers = " (number: tokens)" if labels else ""
        meanings = {
            "prefill": ("prefill or recomputation" if preempted else "prefill chunk") + numbers,
            "decode": "decode (1 token)",
            "verify": "decode with drafts (+: tokens gained)",
            "idle": "running, but not in this step",
            "waiting": "waiting",
            "receiving": "↓ receives K and V",
            "sending": "↑ sends K and V",
        }
        if self.thin:
            meanings["prefill"] = "thick: prefill"
            meanings["decode"] = "thin: decode"
            meanings["verify"] = "between: decode with drafts"
            meanings["receiving"] = "thinner: receives K and V"
            meanings["sending"] = "thinner: sends K and V"
        entries = [
            (_swatch(kind, self.thin), text) for kind, text in meanings.items() if kind in kinds
        ]
        if any(cell.is_placeholder for cell in cells) and self.num_runs <= MAX_CELLS:
            fill, stroke = _look("decode", NOBODY)
            dotted = box_swatch(fill=fill, stroke=stroke, **AHEAD)
            entries.append((dotted, "decode, planned before its token was known"))
        if any(cell.is_wasted for cell in cells):
            entries.append((wasted_swatch, "came after the end: wasted"))
        if preempted:
            entries.append((cross_swatch, "preempted"))
        if any(cell.finished for cell in cells):
            entries.append((_end_swatch, "finished"))
        if any(cell.dropped for cell in cells) and self.num_runs <= MAX_CELLS:
            entries.append((_dropped_swatch, "beam dropped, its place taken"))
        return entries


def draw_cross(drawing: Drawing, x: float, y: float, size: float) -> None:
    """The mark of a preemption."""
    bold = {"font_size": size, "font_weight": "bold", "text_anchor": "middle"}
    drawing.text(x, y + size * 0.33, "×", halo=True, fill=INK, **bold)


def cross_swatch(drawing: Drawing, x: float, y: float) -> None:
    draw_cross(drawing, x + SWATCH_WIDTH / 2, y + SWATCH_HEIGHT / 2, 18)


def crossed_out(box: tuple[float, float, float, float]) -> str:
    """Path of two lines from corner to corner, over what came too late."""
    x, y, width, height = box
    return f"M{x:.2f} {y:g}l{width:.2f} {height:g}m0 {-height:g}l{-width:.2f} {height:g}"


def draw_wasted(
    drawing: Drawing, box: tuple[float, float, float, float], told: str | None = None
) -> None:
    """The mark of a token that came after the end of its sequence."""
    drawing.path(crossed_out(box), told, fill="none", stroke=INK, stroke_width=1.4)


def wasted_swatch(drawing: Drawing, x: float, y: float) -> None:
    look = {"fill": PAPER, "stroke": NOBODY.edge, **AHEAD}
    drawing.rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT, **look)
    draw_wasted(drawing, (x, y, SWATCH_WIDTH, SWATCH_HEIGHT))


def _look(kind: str, owner: Owner) -> tuple[str, str]:
    """Fill and outline of a cell."""
    return {
        "prefill": (owner.solid, owner.edge),
        "decode": (owner.light, owner.edge),
        "verify": (owner.light, INK),
        "waiting": ("#f4f4f4", LINE),
        "receiving": ("#f4f4f4", owner.edge),
        "sending": ("#f4f4f4", owner.edge),
        "idle": (PAPER, owner.edge),
    }[kind]


def _swatch(kind: str, thin: bool) -> Swatch:
    if not thin or kind not in THIN:
        fill, stroke = _look(kind, NOBODY)
        look = {"fill": fill, "stroke": stroke, **(DOTTED if kind in ARROWS else {})}
        return box_swatch(kind == "waiting", **look)
    d = "M{:g} {:g}h" + str(SWATCH_WIDTH)
    look = {"stroke": NOBODY.solid, "stroke_width": THIN[kind]}
    return lambda drawing, x, y: drawing.path(d.format(x, y + SWATCH_HEIGHT / 2), **look)


def _end_swatch(drawing: Drawing, x: float, y: float) -> None:
    drawing.rect(x + SWATCH_WIDTH - 4, y - 1, 4, SWATCH_HEIGHT + 2, fill=INK)


def _dropped_swatch(drawing: Drawing, x: float, y: float) -> None:
    drawing.path(f"M{x + SWATCH_WIDTH - 2:g} {y - 1:g}v{SWATCH_HEIGHT + 2}", **DROPPED)
