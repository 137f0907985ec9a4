"""Draw the clips again: ``python diagrams/clips.py``.

A clip is a run of the real scheduler, step by step: an SVG whose frames are shown one after the
other by its style sheet. Where a reader has asked for less motion, or the style is not there, one
frame stands still.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from minivllm.exercises import make_request
from minivllm.lab.viz.draw.claim import wrapped
from minivllm.lab.viz.draw.layout import MARGIN
from minivllm.lab.viz.draw.palette import ACCENT, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.model.frames import frames
from minivllm.sim import dry_run
from minivllm.trace import Trace
from minivllm.viz import Figure, block_grid, timeline

HERE = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"
LINE = 18  # height of a line of words
NARROWEST = 640


@dataclass(frozen=True)
class Clip:
    """What is shown of a run.

    Args:
        trace: of the run.
        claim: what it shows, in one sentence.
        seconds: of each step.
        still: the step that is shown where nothing moves.
        run: whether there is a timeline.
        pool: whether there is a block pool.
    """

    trace: Trace
    claim: str
    seconds: float
    still: int
    run: bool = True
    pool: bool = True


def sharing_a_step() -> Clip:
    requests = [make_request("A", 5, 8), make_request("B", 3, 7, 1), make_request("C", 12, 4, 3)]
    return Clip(
        dry_run(requests, num_blocks=16, block_size=4, max_num_batched_tokens=8),
        "A and B decode in the same steps in which C's prompt is computed",
        seconds=1.2, still=4, pool=False,
    )  # fmt: skip


def sharing_a_block() -> Clip:
    requests = [make_request("A", 6, 6, n=2)]
    return Clip(
        dry_run(requests, num_blocks=8, block_size=4),
        "Two samples share a block; the first to write into it gets a copy",
        seconds=1.6, still=1, run=False,
    )  # fmt: skip


def preemption() -> Clip:
    requests = [make_request("A", 7, 8), make_request("B", 6, 7)]
    return Clip(
        dry_run(requests, num_blocks=6, block_size=4, enable_prefix_caching=False),
        "B gives its blocks back, waits, and computes its tokens again",
        seconds=0.95, still=8,
    )  # fmt: skip


CLIPS = {
    "clip_shared_step.svg": sharing_a_step,
    "clip_shared_block.svg": sharing_a_block,
    "clip_preemption.svg": preemption,
}


def draw_clip(clip: Clip) -> str:
    """The SVG of a clip: what never changes, and over it a group for each step."""
    told = list(frames(clip.trace))
    run = _elements(timeline(clip.trace, title=clip.claim)) if clip.run else None
    pools = [_elements(block_grid(clip.trace, it.step)) for it in told] if clip.pool else []
    parts = pools if run is None else [run, *pools]
    width = max([NARROWEST, *(_size(root, "width") for root in parts)])
    below = (_size(run, "height") if run is not None else 40.0) + LINE
    said = [" ".join(words for words in (it.before, it.plan, it.result) if words) for it in told]
    said = [f"Step {it.step}: {words}" for it, words in zip(told, said, strict=True)]
    lines = [wrapped(words, width - 2 * MARGIN) for words in said]
    words_end = below + LINE * (max(map(len, lines)) - 1)
    height = words_end + max((_size(pool, "height") for pool in pools), default=MARGIN / 2)
    drawing = Drawing(width, height, clip.claim, f"{clip.claim}. {' '.join(said)}")
    if run is not None:
        _put(drawing, run, down=0)
    else:
        drawing.text(MARGIN, MARGIN + 12, clip.claim, font_size=15, font_weight="bold")
    for number, frame in enumerate(told):
        still = {} if frame.step == clip.still else {"visibility": "hidden"}
        with drawing.group(data_frame=number, **still):
            if run is not None:
                _show_up_to(drawing, run, frame.step)
            for i, line in enumerate(lines[number]):
                drawing.text(MARGIN, below + LINE * i, line)
            if pools:
                _put(drawing, pools[number], down=words_end)
    style = _moving(len(told), clip.seconds)
    return drawing.to_string().replace("</style>", f"{style}</style>", 1)


def _moving(num_frames: int, seconds: float) -> str:
    """A style by which frames are shown one after the other, and again; if motion is welcome."""
    whole = num_frames * seconds
    frames_begin = "".join(
        f'[data-frame="{i}"]{{animation-delay:{i * seconds - whole:g}s}}' for i in range(num_frames)
    )
    end = f"{100 / num_frames:.4g}%"
    return (
        "@media (prefers-reduced-motion:no-preference){"
        f"[data-frame]{{animation:shown {whole:g}s step-end infinite}}{frames_begin}}}"
        f"@keyframes shown{{0%{{visibility:visible}}{end}{{visibility:hidden}}"
        "100%{visibility:hidden}}"
    )


def _elements(figure: Figure) -> ET.Element:
    """The root of a figure, under names without SVG's namespace."""
    root = ET.fromstring(figure.svg)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return root


def _size(root: ET.Element, name: str) -> float:
    return float(root.get(name))


def _put(drawing: Drawing, root: ET.Element, down: float) -> None:
    """Draw all of a figure but its paper, so far down."""
    paper = root.find("rect")
    kept = [it for it in root if it.tag not in ("title", "desc", "style") and it is not paper]
    with drawing.group(transform=f"translate(0 {down:g})"):
        drawing.extend(kept)


def _show_up_to(drawing: Drawing, run: ET.Element, step: int) -> None:
    """Cover what a timeline shows of later steps, and frame this one."""
    first, left, width, top, bottom = (
        _size(run, f"data-{name}") for name in ("first", "x", "step", "top", "bottom")
    )
    moved = next(g.get("transform") for g in run.iter("g") if g.get("transform"))
    top += float(re.findall(r"[\d.]+", moved)[1])
    bottom += float(re.findall(r"[\d.]+", moved)[1])
    x = left + (step - first) * width
    later = x + width + 0.5
    drawing.rect(later, top - 1, _size(run, "width") - later, bottom - top + 2, fill=PAPER)
    look = {"fill": "none", "stroke": ACCENT, "stroke_width": 2, "rx": 3}
    drawing.rect(x - 1, top - 1, width + 2, bottom - top + 2, **look)


if __name__ == "__main__":
    for name, make in CLIPS.items():
        (HERE / name).write_text(draw_clip(make()), encoding="utf-8")
        print(name)
