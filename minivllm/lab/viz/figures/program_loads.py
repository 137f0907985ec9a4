"""Program loads: which blocks each program of a kernel reads, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, draw_header, header_width
from minivllm.lab.viz.draw.palette import GREY, OKABE_ITO
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing
from minivllm.utils.validation import check

BOX_WIDTH, LINE_HEIGHT = 34, 20


def program_loads(
    loads: Mapping[str, Sequence[int]], colour_of: Mapping[int, int] | None = None,
    title: str | None = None, mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a row for each program, and in it the blocks that it reads, from left to right.

    Args:
        loads: by the program's name, physical block ids in the order in which it reads them.
        colour_of: by block id, the number of its colour; blocks that are not there have the first.
        title, mark: what it shows, and reads to point at: (program, how many before it, text).

    Raises:
        ValueError: if there is no program.
    """
    check(len(loads) > 0, "loads", loads, "at least one program")
    colour_of = colour_of or {}
    longest = max(map(len, loads.values()))
    total = sum(map(len, loads.values()))
    head = f"{len(loads)} programs, at most {longest} blocks one after another"
    facts = f"{total} blocks read in all"
    labels = 12 * SANS_EM * max(map(len, loads)) + MARGIN
    width = max(MARGIN + labels + BOX_WIDTH * longest + MARGIN, header_width(head, facts))
    height = HEADER_HEIGHT + LINE_HEIGHT * len(loads) + MARGIN
    drawing = Drawing(width, height, head, f"{head}; {facts}.")
    draw_header(drawing, head, facts)
    for line, (name, blocks) in enumerate(loads.items()):
        y = HEADER_HEIGHT + LINE_HEIGHT * line
        drawing.text(MARGIN, y + 13, name)
        for i, block in enumerate(blocks):
            x = MARGIN + labels + BOX_WIDTH * i
            colour = OKABE_ITO[colour_of.get(block, 0) % len(OKABE_ITO)]
            drawing.rect(x, y, BOX_WIDTH - 2, 17, fill=colour, fill_opacity=0.4, stroke=GREY)
            drawing.place((name, i), x, y, BOX_WIDTH - 2, 17)
            drawing.text(x + BOX_WIDTH / 2 - 1, y + 13, block, text_anchor="middle")
    text = "\n".join(f"{name}: {' '.join(map(str, blocks))}" for name, blocks in loads.items())
    return finish(drawing, f"{head}\n{facts}\n{text}", f"{head}; {facts}.", title, mark)
