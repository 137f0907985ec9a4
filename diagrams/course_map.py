"""The map of the course: which notebook needs which, and how long each takes to read."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

from canvas import FULL_BLUE, FULL_GREEN, FULL_ORANGE, ORANGE, PLAIN, UNWRITTEN, Box, Canvas

from minivllm.course.chapters import CHAPTERS
from minivllm.lab.viz.draw.figure import Figure

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDTH, HEIGHT, GAP, MARGIN = 150, 62, 18, 24
PAGE = 2 * MARGIN + 4 * WIDTH + 3 * GAP
# Topics of the chapters: the first one is a row, the others are below it, in four columns.
FIRST = "First"
BEFORE = "Before"
COLUMNS = (
    ("Memory", "Known prefixes", "Fewer bits", "Windows"),
    ("Scheduling", "Serving", "Vectors", "Pictures"),
    ("From logits to answers", "Many users", "In vLLM"),
    ("Kernels", "Machines", "Several devices", "Real weights"),
)
TRACK_COLOURS = {"90 minutes": FULL_ORANGE, "systems": FULL_BLUE, "kernels": FULL_GREEN}


def load_course():
    """notebooks/course.py, from wherever this file is run."""
    if "course" not in sys.modules:
        spec = importlib.util.spec_from_file_location("course", NOTEBOOKS / "course.py")
        sys.modules["course"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["course"])
    return sys.modules["course"]


def draw() -> Figure:
    course = load_course()
    found = {it.number: it for it in course.lectures()}
    topics: dict[str, list[str]] = {}
    for number in found:
        topics.setdefault(CHAPTERS[number].topic, []).append(number)
    before = topics.pop(BEFORE)
    first = topics.pop(FIRST)
    if missing := topics.keys() - {topic for column in COLUMNS for topic in column}:
        raise ValueError(f"give {sorted(missing)} a place in COLUMNS of course_map.py.")
    columns = [{topic: topics[topic] for topic in column} for column in COLUMNS]
    alt = _alt(found, before, first, columns, course.TO_COME)
    page = Canvas(
        "What needs what", "Arrows, and “needs”, say what to read first. Minutes are for reading; "
        "exercises take as long again.", alt, PAGE, 1,
    )  # fmt: skip
    page.drawing.root.set("role", "group")  # a screen reader passes over links in a picture
    _legend(page)
    _heading(page, MARGIN, 116, "If attention is new to you")
    for i, number in enumerate(before):
        _lecture(page, found[number], _left(i), 126)
    top = 126 + HEIGHT + 34
    _heading(page, MARGIN, top - 10, "First, in this order; all that follows needs them")
    row = [_lecture(page, found[n], _left(i), top) for i, n in enumerate(first)]
    for left, right in pairwise(row):
        _arrow(page, left.right, right.left)
    ends = [_column(page, found, columns[i], _left(i), top + 100) for i in range(len(columns))]
    y = _capstone(page, max(ends) - 10)
    if not course.TO_COME:
        page.drawing.resize(PAGE, y)
        return page.figure()
    _heading(page, MARGIN, y, "To come")
    for index, (number, name) in enumerate(course.TO_COME.items()):
        page.box(
            _left(index), y + 10, WIDTH, HEIGHT - 16, number, (name,), UNWRITTEN, dashed=True,
            mono=False,
        )  # fmt: skip
    page.drawing.resize(PAGE, y + 10 + HEIGHT - 16 + MARGIN)
    return page.figure()


def _alt(found, before, first, columns, to_come) -> str:
    topics = [
        f"{topic} ({', '.join(numbers)})" for column in columns for topic, numbers in column.items()
    ]
    coming = ", ".join(f"{name} ({number})" for number, name in to_come.items())
    return (
        f"The {len(found)} notebooks as boxes, {sum(it.time.minutes for it in found.values())} "
        f"minutes of reading in all. {', '.join(before)} for readers to whom attention is new; "
        f"{', '.join(first)} in a row, below them topics, each read downwards: "
        f"{'; '.join(topics)}. Then your own engine." + f" To come: {coming}." * bool(coming)
    )


def _left(column: int) -> float:
    return MARGIN + column * (WIDTH + GAP)


def _heading(page: Canvas, x: float, y: float, text: str) -> None:
    page.words(x, y, text, font_size=13, font_weight="bold")


def _legend(page: Canvas) -> None:
    """The tracks with their dots, in the order that they have in a box."""
    page.words(MARGIN, 84, "Tracks:")
    x = MARGIN + 56
    for track, colour in TRACK_COLOURS.items():
        page.dot(x, 80, colour)
        page.words(x + 10, 84, track)
        x += 30 + 7 * len(track)


def _column(page: Canvas, found, topics, x: float, y: float) -> float:
    """Topics below each other; returns where the column ends."""
    for topic, numbers in topics.items():
        _heading(page, x, y, topic)
        y, above = y + 10, None
        for number in numbers:
            arrow = above is not None and above.name in found[number].needs
            also = _also_needed(number, above.name if arrow else None, found)
            box = _lecture(page, found[number], x, y, also)
            if arrow:
                _arrow(page, above.bottom, box.top)
            y, above = y + HEIGHT + GAP, box
        y += 16
    return y


def _lecture(page: Canvas, it, x: float, y: float, also: list[str] = ()) -> Box:
    """A notebook with its minutes, its tracks, and what it needs that no arrow shows."""
    name = it.path.stem.split("_", 1)[1].replace("_", " ")
    needs = f" · needs {', '.join(also)}" if also else ""
    with page.link(f"../notebooks/{it.path.name}"):
        box = page.box(
            x, y, WIDTH, HEIGHT, it.number, (name, f"{it.time.minutes} min{needs}"), PLAIN,
            mono=False,
        )  # fmt: skip
        for index, (track, colour) in enumerate(TRACK_COLOURS.items()):
            if track in it.tracks:
                page.dot(x + WIDTH - 38 + 13 * index, y + 12, colour)
    return box


def _capstone(page: Canvas, y: float) -> float:
    with page.link("../notebooks/guide/build_your_own.md"):
        page.box(
            MARGIN, y, PAGE - 2 * MARGIN, HEIGHT - 16, "Build your own engine",
            ("five pieces, after 03, 04, 05, 08 and 10; six hours",), ORANGE, mono=False,
        )  # fmt: skip
    return y + HEIGHT + GAP


def _arrow(page: Canvas, start, end) -> None:
    page.arrow([start, end], colour="#8a8a8a")


def _also_needed(number: str, arrow: str | None, found) -> list[str]:
    """What it needs; not the first ones, nor what another one or its arrow implies."""
    needs = [n for n in found[number].needs if n in found and CHAPTERS[n].topic != FIRST]
    return [n for n in needs if n != arrow and not _implied(n, needs, found)]


def _implied(needed: str, needs: list[str], found) -> bool:
    """Is it needed by another one that is needed? Then to say so would be nothing new."""
    return any(needed in all_needs(other, found) for other in needs if other != needed)


def all_needs(number: str, found) -> set[str]:
    direct = set(found[number].needs) if number in found else set()
    return direct.union(*(all_needs(n, found) for n in direct))
