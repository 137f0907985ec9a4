"""The course as a whole: ``python notebooks/course.py`` writes what follows from its notebooks.

That is: the minutes in their headers, 90_minutes.ipynb, the overview in README.md beside this file,
and the map of prerequisites, diagrams/course_map.svg. Run it when a notebook has changed, come or
gone.
"""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import ninety  # noqa: E402
from reading_time import ReadingTime, reading_time, write_minutes  # noqa: E402

from minivllm.course.chapters import CHAPTERS  # noqa: E402

# Those that are not written yet.
TO_COME: dict[str, str] = {}
# The first track is pieces of its notebooks, in one of its own; the others are whole notebooks.
TRACKS = {
    "90 minutes": tuple(ninety.PARTS),
    "systems": ("00", "01", "02", "03", "04", "05", "06", "07", "08", "13", "21", "21b", "22"),
    "kernels": ("00", "01", "02", "03", "09", "10", "11", "A1"),
}
TRACK_LETTERS = {"90 minutes": "90", "systems": "S", "kernels": "K"}
BEGIN, END = "<!-- written by course.py -->\n", "<!-- end -->"


@dataclass(frozen=True)
class Lecture:
    """One notebook, as its header describes it."""

    number: str
    path: Path
    title: str
    objectives: list[str]
    header: str
    time: ReadingTime

    @property
    def tracks(self) -> list[str]:
        return [name for name, numbers in TRACKS.items() if self.number in numbers]

    @property
    def needs(self) -> tuple[str, ...]:
        return CHAPTERS[self.number].needs


def lectures() -> list[Lecture]:
    """All lectures in their order; 90_minutes.ipynb is none."""
    return [read_lecture(path) for path in sorted(HERE.glob("*.ipynb")) if path != ninety.PATH]


def read_lecture(path: Path) -> Lecture:
    header = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title = re.match(r"# (?:\w+ · )?(.+)", header)[1]
    objectives = [re.sub(r"[;.]$", "", line) for line in re.findall(r"^\d\. (.+)", header, re.M)]
    return Lecture(path.stem.split("_")[0], path, title, objectives, header, reading_time(path))


def overview() -> str:
    """The table of README.md: order, minutes, prerequisites, tracks."""
    lines = [
        "| notebook | minutes | needs | tracks | teacher |",
        "|---|---|---|---|---|",
    ]
    for it in lectures():
        lines.append(
            f"| [{it.number} · {it.title}]({it.path.name}) | {it.time.minutes} "
            f"| {', '.join(it.needs)} | {' '.join(TRACK_LETTERS[track] for track in it.tracks)} "
            f"| [page](teach/{it.number}.md) |"
        )
    to_come = ", ".join(f"{number} {name}" for number, name in TO_COME.items())
    if to_come:
        lines += ["", f"To come: {to_come}."]
    return "\n".join(lines) + "\n"


def readme() -> str:
    """README.md with today's overview in it."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + overview() + END + rest.split(END, 1)[1]


def draw_map() -> None:
    spec = importlib.util.spec_from_file_location("draw", HERE.parent / "diagrams" / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    draw.draw_diagram("course_map").save(HERE.parent / "diagrams" / "course_map.svg")


if __name__ == "__main__":
    for notebook in HERE.glob("*.ipynb"):
        write_minutes(notebook)
    ninety.write()
    (HERE / "README.md").write_text(readme(), encoding="utf-8")
    draw_map()
    print("written: headers, 90_minutes.ipynb, notebooks/README.md, diagrams/course_map.svg")
