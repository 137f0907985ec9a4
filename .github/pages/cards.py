"""The course page: its map, whose boxes are links, and a card for each notebook."""

import re
from html import escape
from pathlib import Path

from pages.drawings import in_language
from pages.notebook import runs_on_its_page

from minivllm.lab.translation import TEXTS, translated

MAP = Path(__file__).parents[2] / "diagrams" / "course_map.svg"
IMAGE = re.compile(r"!\[[^\]]*\]\(\.\./diagrams/course_map\.svg\)")
ROW = re.compile(
    r"^\| \[(?P<number>\w+) · (?P<title>.+?)\]\((?P<file>\w+)\.ipynb\) \| (?P<minutes>\d+) "
    r"\| (?P<needs>.*?) ?\| (?P<tracks>.*?) ?\| \[\w+\]\(teach/\w+\.md\) \|$",
    re.MULTILINE,
)
TABLE = re.compile(r"^\|.*\n\|[-|]+\n(\| \[\w+ · .*\n)+", re.MULTILINE)
TRACKS = {"90": "90 minutes", "S": "systems", "K": "kernels"}


def the_map() -> str:
    """The map as a part of a page, so that its boxes lead to pages."""
    svg = MAP.read_text(encoding="utf-8")
    svg = re.sub(r'width="(\d+)" height="\d+"', r'style="max-width: \1px"', svg, count=1)
    svg = re.sub(r'href="\.\./notebooks/([^".]+)\.\w+"', r'href="\1.html"', svg)
    # What it says to a screen reader are its links; the sentence is one of numbers that change.
    svg = re.sub(r' aria-label="[^"]*"|<desc>[^<]*</desc>', "", in_language(svg)) if TEXTS else svg
    return f'<div class="map">{svg}</div>'


def with_map(text: str) -> str:
    """The overview with the map in place of its picture."""
    return IMAGE.sub(lambda _: the_map(), text)


def with_cards(text: str) -> str:
    """The overview with cards in place of its table."""
    return TABLE.sub(lambda table: cards(table[0]) + "\n", text)


def cards(table: str) -> str:
    rows = list(ROW.finditer(table))
    assert len(rows) == len(table.splitlines()) - 2, "a row of the overview is of another form"
    return f'<ul class="cards">{"".join(map(card, rows))}</ul>\n'


def card(row: re.Match) -> str:
    number, file = row["number"], row["file"]
    tracks = "".join(
        f'<span class="track track-{letter}">{translated(TRACKS[letter])}</span>'
        for letter in row["tracks"].split()
    )
    runs = f'<span class="runs">{translated("runs in the page")}</span>'
    runs = runs if runs_on_its_page(Path(file)) else ""
    needed = row["needs"]
    needs = translated("after {numbers}" if needed else "begin here").format(numbers=needed)
    minutes = translated("{minutes} min").format(minutes=row["minutes"])
    teacher = translated("teacher's page")
    page = translated("teacher's page of {number}").format(number=number)
    return (
        f'<li class="card"><a class="main" href="{file}.html"><b>{number}</b> '
        f"{escape(row['title'])}</a>"
        f'<span class="small">{minutes} · {needs} · '
        f'<a href="teach/{number}.html" aria-label="{page}">'
        f"{teacher}</a></span>"
        f'<span class="small">{tracks}{runs}</span></li>'
    )
