"""The stepper: a slider and a play button over the frames of a run, in a live notebook.

Where nothing is live (GitHub, nbviewer, nbconvert), a picture of a few steps shows in its place. It
is all there is without ipywidgets, too.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from types import ModuleType
from typing import Any

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.claim import Mark, wrapped
from minivllm.lab.viz.draw.figure import Figure
from minivllm.lab.viz.draw.layout import MARGIN
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import listing, sentence
from minivllm.lab.viz.figures.block_grid import block_grid
from minivllm.lab.viz.figures.block_table import block_table
from minivllm.lab.viz.figures.filmstrip import eventful_steps, filmstrip
from minivllm.lab.viz.model.frames import StepFrame, frames
from minivllm.trace import Trace

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAX_NAMED = 24  # in a queue
LINE_HEIGHT = 18  # of the words
GAP = 6
WORDS = "line-height: 1.5; height: 7.5em; overflow: auto"  # five lines; more scroll
SCROLLBAR = 16  # pixels
STEP_WIDTH = 64  # of "step 12" before the words


def stepper(
    trace: Trace,
    steps: Iterable[int] | None = None,
    decode: Callable[[int], str] | None = None,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Stepper | Figure:
    """Walk through a run, forwards and backwards; meant to be the last line of a notebook's cell.

    Args:
        trace: what the engine wrote.
        steps: those of the still picture, as for ``filmstrip``.
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: of the still picture, as for ``filmstrip``.

    Raises:
        ValueError: for a trace without steps, or steps that it does not have.
    """
    all_frames = list(frames(trace, decode))
    still = _still(trace, all_frames, steps, title, mark)
    try:
        import ipywidgets
    except ImportError:
        return still
    return Stepper(ipywidgets, trace, all_frames, decode, still)


class Stepper:
    """The widgets, and the still picture in their place where there are none.

    Setting ``slider.value`` from Python does what a reader does with the mouse.
    """

    def __init__(
        self, widgets: ModuleType, trace: Trace, all_frames: list[StepFrame],
        decode: Callable[[int], str] | None, still: Figure,
    ):  # fmt: skip
        self.trace = trace
        self.decode = decode
        self.frames = all_frames
        self.still = still
        self._letters = {seq_id: owner.letter for seq_id, owner in owners_of(trace).items()}
        last = len(self.frames) - 1
        self.play = widgets.Play(min=0, max=last, interval=900)
        self.slider = widgets.IntSlider(min=0, max=last, description=translated("step"))
        self.slider.layout.width = "60%"
        narrow = {"width": "3em"}
        self.back = widgets.Button(description="◀", tooltip="one step back", layout=narrow)
        self.forward = widgets.Button(description="▶", tooltip="one step forward", layout=narrow)
        self._room = self._rooms()
        self.words = widgets.HTML()
        self.picture = widgets.HTML()
        controls = widgets.HBox([self.play, self.back, self.forward, self.slider])
        self.box = widgets.VBox([controls, self.words, self.picture])
        widgets.jslink((self.play, "value"), (self.slider, "value"))
        self.slider.observe(lambda change: self._show(change["new"]), "value")
        self.back.on_click(lambda _: self._move(-1))
        self.forward.on_click(lambda _: self._move(1))
        self._show(0)

    def _move(self, by: int) -> None:
        self.slider.value += by  # it stays within its bounds

    def _show(self, index: int) -> None:
        frame = self.frames[index]
        lines = (
            frame.before, frame.plan, frame.result, self._queues(frame), self._items(frame)
        )  # fmt: skip
        words = "<br>".join(escape(line) for line in lines if line)
        self.words.value = f'<div style="{WORDS}">{words}</div>'
        self.picture.value = "".join(map(_boxed, self._draw(frame), self._room))

    def _draw(self, frame: StepFrame) -> tuple[Figure, Figure]:
        """Pool and tables, as they are after a step's plan."""
        pool = block_grid(self.trace, frame.step, decode=self.decode)
        tables = block_table(self.trace, frame.step, decode=self.decode)
        return pool, tables

    def _rooms(self) -> list[float]:
        """Heights of the two pictures, so that nothing moves while it plays.

        Those of the step with the most sequences, or of the one with the most blocks in tables.
        """
        most = (
            max(self.frames, key=lambda frame: len(frame.rows)),
            max(self.frames, key=lambda frame: sum(len(row.block_ids) for row in frame.rows)),
        )
        drawn = [self._draw(frame) for frame in most]
        pools = [_size(pool)[1] for pool, _ in drawn]
        tables = [_size(table)[1] for _, table in drawn]
        return [max(pools), max(tables)]

    def _queues(self, frame: StepFrame) -> str:
        """ "Running: A and B. Waiting: C. On the host: D."."""
        queues = {
            translated("Running"): frame.running, translated("Waiting"): frame.waiting,
            "On the host": frame.swapped,
            "K and V come": frame.receiving, "K and V are sent": frame.sending,
        }  # fmt: skip
        told = (
            f"{name}{translated(': ')}{listing([self._letters[s] for s in queue], MAX_NAMED)}"
            for name, queue in queues.items()
            if queue
        )
        return " ".join(sentence(each) for each in told)

    def _items(self, frame: StepFrame) -> str:
        """ "Encoder cache: cat (A and B), dog."; "" if it is empty."""
        named = []
        for identifier, holders in frame.items[:MAX_NAMED]:
            letters = listing([self._letters[seq_id] for seq_id in holders], MAX_NAMED)
            named.append(f"{identifier} ({letters})" if letters else identifier)
        return f"Encoder cache: {', '.join(named)}." if named else ""

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict[str, Any], dict]:
        """Widget, SVG and text: a front end shows the first of these that it can."""
        view = self.box._repr_mimebundle_()[WIDGET_VIEW]
        data, metadata = self.still._repr_mimebundle_()
        return {WIDGET_VIEW: view, **data}, metadata

    def __repr__(self) -> str:
        return self.still.text


def _size(figure: Figure) -> tuple[float, float]:
    """Width and height of a drawing, in pixels."""
    root = ET.fromstring(figure.svg)
    return float(root.get("width", 0)), float(root.get("height", 0))


def _boxed(figure: Figure, height: float) -> str:
    """A drawing in a box that scrolls; as an image it follows the notebook's theme."""
    width, _ = _size(figure)
    data = b64encode(figure.svg.encode()).decode()
    return (
        f'<div style="height: {height + SCROLLBAR:g}px; overflow: auto">'
        f'<img alt="{escape(figure.alt)}" src="data:image/svg+xml;base64,{data}" '
        f'style="display: block; width: 100%; min-width: {0.96 * width:.0f}px; '
        f'max-width: {width:g}px"></div>'
    )


def _still(
    trace: Trace, all_frames: list[StepFrame], steps: Iterable[int] | None, title: str | None,
    mark: Sequence[Mark],
) -> Figure:  # fmt: skip
    """A filmstrip, and below it in words what happens in its steps."""
    steps = eventful_steps(trace) if steps is None else list(steps)
    strip = filmstrip(trace, steps, title=title, mark=mark)
    told = [frame for frame in all_frames if frame.step in steps]
    words = "\n".join(f"step {frame.step}: {frame.words}" for frame in told)
    return Figure(_draw_words(strip, told), f"{strip.text}\n\n{words}", strip.alt)


def _draw_words(strip: Figure, told: list[StepFrame]) -> str:
    root = ET.fromstring(strip.svg)
    width = float(root.get("width"))
    height = float(root.get("height"))
    room = width - 2 * MARGIN - STEP_WIDTH
    lines = [(frame.step, wrapped(frame.words, room)) for frame in told]
    num_lines = sum(len(sentences) for _, sentences in lines)
    sheet_height = height + num_lines * LINE_HEIGHT + len(lines) * GAP + MARGIN
    drawing = Drawing(width, sheet_height, "Steps of a run", strip.alt)
    y = height + 12
    for step, sentences in lines:
        drawing.text(MARGIN, y, f"step {step}", font_weight="bold")
        for line in sentences:
            drawing.text(MARGIN + STEP_WIDTH, y, line)
            y += LINE_HEIGHT
        y += GAP
    return f"{drawing.to_string().removesuffix('</svg>')}{strip.svg}</svg>"
