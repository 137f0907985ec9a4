"""Program loads: which blocks each program of a kernel reads, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, OKABE_ITO
from minivllm.lab.viz.draw.svg import text_width
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check

BOX_WIDTH = 34
LINE_HEIGHT = 20


def program_loads(
    loads: Mapping[str, Sequence[int]], colour_of: Mapping[int, int] | None = None,
    title: str | None = None, mark: Sequence[Mark] = (), noun: str = "blocks",
) -> Figure:  # fmt: skip
    """Draw a row for each program, and in it the blocks that it reads, from left to right.

    Args:
        loads: by the program's name, physical block ids in the order in which it reads them. Names
            such as "program 2: A" are drawn as "A", sorted by it, with the program small beside.
        colour_of: by block id, the number of its colour; blocks that are not there have the first.
        title, mark: what it shows, and reads to point at: (program, how many before it, text).
        noun: the word for what is read, if it is not blocks.

    Raises:
        ValueError: if there is no program.
    """
    check(len(loads) > 0, "loads", loads, "at least one program")
    colour_of = colour_of or {}
    if all(": " in name for name in loads):
        loads = dict(sorted(loads.items(), key=lambda item: item[0].partition(": ")[2]))
    longest = max(map(len, loads.values()))
    total = sum(map(len, loads.values()))
    head = f"{count(len(loads), 'program')}, at most {longest} {noun} one after another"
    facts = f"{total} {noun} read in all"
    labels = max(map(text_width, loads)) + MARGIN
    right = MARGIN + labels + BOX_WIDTH * longest
    bottom = HEADER_HEIGHT + LINE_HEIGHT * len(loads) + MARGIN / 2
    drawing = sheet(head, facts, f"{head}; {facts}.", right, bottom)
    for line, (name, blocks) in enumerate(loads.items()):
        y = HEADER_HEIGHT + LINE_HEIGHT * line
        program, _, sequence = name.rpartition(": ")
        drawing.text(MARGIN, y + 13, sequence, font_weight="bold" if program else "normal")
        left = MARGIN + text_width(sequence, bold=True) + 8
        drawing.text(left, y + 13, program, fill=GREY, font_size=11)
        for i, block in enumerate(blocks):
            x = MARGIN + labels + BOX_WIDTH * i
            colour = OKABE_ITO[colour_of.get(block, 0) % len(OKABE_ITO)]
            drawing.rect(x, y, BOX_WIDTH - 2, 17, fill=colour, fill_opacity=0.4, stroke=GREY)
            drawing.place((name, i), x, y, BOX_WIDTH - 2, 17)
            drawing.text(x + BOX_WIDTH / 2 - 1, y + 13, block, text_anchor="middle")
    text = "\n".join(f"{name}: {' '.join(map(str, blocks))}" for name, blocks in loads.items())
    return finish(drawing, f"{head}\n{facts}\n{text}", title, mark)
