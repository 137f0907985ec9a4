"""The map of the course: which notebook needs which, and how long each takes to read."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from canvas import BLUE, GREEN, ORANGE, PINK, PLAIN, Box, Canvas

from minivllm.lab.viz.draw.figure import Figure

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDTH, HEIGHT, GAP, ROW = 158, 66, 18, 102
# The place of each notebook, row by row, so that arrows cross as little as may be.
ROWS = (
    ("00",),
    ("01",),
    ("02",),
    ("03",),
    ("13", "04", "05", "08", "09"),
    ("04b", "06", "12", "21", "07", "10"),
    ("06b", "14", "15", "21b", "11", "A1"),
    ("13b", "16", "08b", "22", "A4", "A2"),
    ("A3",),
)
TRACK_COLOURS = {"90 minutes": ORANGE, "systems": BLUE, "kernels": GREEN}
TRACK_INITIALS = {"90 minutes": "90", "systems": "S", "kernels": "K"}


def load_course():
    """notebooks/course.py, from wherever this file is run."""
    if "course" not in sys.modules:
        spec = importlib.util.spec_from_file_location("course", NOTEBOOKS / "course.py")
        sys.modules["course"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["course"])
    return sys.modules["course"]


def draw() -> Figure:
    found = {it.number: it for it in load_course().lectures()}
    rows = [[n for n in row if n in found] for row in ROWS]
    rows = [row for row in rows if row]
    missing = found.keys() - {n for row in rows for n in row}
    if missing:
        raise ValueError(f"give {sorted(missing)} a place in ROWS of course_map.py.")
    minutes = sum(it.time.minutes for it in found.values())
    alt = (
        f"The {len(found)} notebooks as boxes, {minutes} minutes of reading in all, each below "
        "those that it needs: 00 to 03 in a row, then memory (04), scheduling (05 to 07), caching "
        "(08) and kernels (09 to 11), which do not need each other; sampling (12), memory of a GPU "
        "(13), speculative decoding (14), structured outputs (15), tool calling (16), serving (21) "
        "with streams (21b) and metrics (22), the roofline (A1), measuring a machine (A2), "
        "a CPU kernel (A3)."
    )
    width = 6 * WIDTH + 5 * GAP + 56
    page = Canvas(
        "What needs what", "Arrows lead from a notebook to those that build on it. Minutes are "
        "for reading, exercises come on top.", alt, width, 90 + ROW * len(rows) + 28,
    )  # fmt: skip
    boxes = {}
    for index, row in enumerate(rows):
        left = (width - len(row) * WIDTH - (len(row) - 1) * GAP) / 2
        for place, number in enumerate(row):
            boxes[number] = _box(
                page, found[number], left + place * (WIDTH + GAP), 84 + ROW * index
            )
    for number, box in boxes.items():
        for needed in found[number].needs:
            if needed in boxes and not _implied(needed, found[number].needs, found):
                _arrow(page, boxes[needed], box)
    page.words(
        28, 90 + ROW * len(rows) + 10, "Tracks: 90 is the 90 minutes (orange), S systems (blue), "
        "K kernels (green); pink is in S and K.",
    )  # fmt: skip
    return page.figure()


def _box(page: Canvas, it, x: float, y: float) -> Box:
    name = it.path.stem.split("_", 1)[1].replace("_", " ")
    initials = " ".join(TRACK_INITIALS[track] for track in it.tracks)
    colours = [TRACK_COLOURS[track] for track in it.tracks]
    colour = PLAIN if not colours else colours[0] if colours[0] == ORANGE else PINK
    if len(colours) == 1:
        colour = colours[0]
    return page.box(
        x, y, WIDTH, HEIGHT, it.number, (name, f"{it.time.minutes} min · {initials or '-'}"),
        colour, mono=False,
    )  # fmt: skip


def _arrow(page: Canvas, start: Box, end: Box) -> None:
    """From a box to one in the next row; around the rows in between if there are any."""
    if end.y - start.y > ROW:
        outside = 28 + 6 * WIDTH + 5 * GAP + GAP / 2
        corners = [(outside, start.right[1]), (outside, end.right[1])]
        points = [start.right, *corners, end.right]
    else:
        middle = (start.bottom[0] - end.top[0]) / 8
        points = [start.bottom, (end.top[0] + middle, end.top[1] - 14), end.top]
    page.arrow(points, colour="#8a8a8a")


def _implied(needed: str, needs: tuple[str, ...], found) -> bool:
    """Is it needed by another one that is needed? Then its arrow would say nothing new."""
    return any(needed in _all_needs(other, found) for other in needs if other != needed)


def _all_needs(number: str, found) -> set[str]:
    direct = set(found[number].needs) if number in found else set()
    return direct.union(*(_all_needs(n, found) for n in direct))
