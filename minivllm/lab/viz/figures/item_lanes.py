"""The lanes of items below a timeline: what a step encodes, and what the encoder cache keeps.

A bar is made of its items, each in its own colour: full while a sequence needs it, light when it
may be evicted. (notebook 25)
"""

from __future__ import annotations

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.layout import MARGIN, Swatch, box_swatch
from minivllm.lab.viz.draw.palette import GREY, INK, LINE
from minivllm.lab.viz.draw.step_axis import LANE_HEIGHT, StepAxis
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, shorten
from minivllm.lab.viz.model.item_model import ItemLane
from minivllm.lab.viz.model.timeline_model import TimelineWindow

MAX_NAMED = 8  # items in the legend


def draw_item_lane(drawing: Drawing, axis: StepAxis, lane: ItemLane, y: float) -> None:
    """Stacked bars under a line for the limit."""
    peak = max(lane.values)
    top = max(1, lane.limit, peak)
    scale = LANE_HEIGHT / top
    bottom = y + LANE_HEIGHT
    drawing.text(MARGIN, y + 14, lane.name, font_weight="bold")
    with drawing.group(fill=GREY, font_size=11):
        if lane.limit:
            drawing.text(MARGIN, y + 28, f"{translated(lane.limit_name)} {lane.limit}")
        drawing.text(MARGIN, y + 42, f"peak {peak}")
    left = f"M{axis.x(axis.first):g} "
    if lane.limit:
        line = f"{left}{bottom - lane.limit * scale:g}H{axis.right:.2f}"
        drawing.path(line, stroke=INK, stroke_dasharray="4 3")
    drawing.path(f"{left}{bottom:g}H{axis.right:.2f}", stroke=LINE)
    gap = 1.0 if axis.separate else 0.0
    with drawing.group(font_size=11, text_anchor="middle", stroke_width=0.6):
        for step, parts in enumerate(lane.parts, axis.first):
            drawing.place((lane.name, step), axis.x(step), y, axis.width(step), LANE_HEIGHT)
            part_bottom = bottom
            for part in parts:
                height = part.num_embeds * scale
                part_bottom -= height
                item = part.item
                told = f"{item.letter} {item.seq_id}, {count(part.num_embeds, 'embedding')}"
                drawing.rect(
                    axis.x(step) + gap, part_bottom, axis.width(step) - 2 * gap, height,
                    told + ", may be evicted" * (not part.is_used),
                    fill=item.solid if part.is_used else item.light, stroke=item.edge,
                )  # fmt: skip
                if height >= 11 and axis.fits(item.letter, step):
                    ink = item.ink if part.is_used else INK
                    middle = part_bottom + height / 2 + 4
                    drawing.text(axis.x(step + 0.5), middle, item.letter, fill=ink)


def item_entries(window: TimelineWindow) -> list[tuple[Swatch, str]]:
    """Items and their colours, for the legend."""
    items = {
        part.item.seq_id: part.item
        for lane in window.item_lanes
        for parts in lane.parts
        for part in parts
    }
    entries = [
        (box_swatch(fill=item.solid, stroke=item.edge), f"item {item.letter}: {shorten(name, 12)}")
        for name, item in list(items.items())[:MAX_NAMED]
    ]
    parts = [part for lane in window.item_lanes for step in lane.parts for part in step]
    light = next((part.item for part in parts if not part.is_used), None)
    if light is not None:
        entries.append((box_swatch(fill=light.light, stroke=light.edge), "light: may be evicted"))
    return entries
