"""The course page: its map, whose boxes are links, and a card for each notebook."""

import re
from html import escape
from pathlib import Path

from pages.notebook import runs_on_its_page

MAP = Path(__file__).parents[2] / "diagrams" / "course_map.svg"
IMAGE = re.compile(r"!\[[^\]]*\]\(\.\./diagrams/course_map\.svg\)")
ROW = re.compile(
    r"^\| \[(?P<number>\w+) · (?P<title>.+?)\]\((?P<file>\w+)\.ipynb\) \| (?P<minutes>\d+) "
    r"\| (?P<needs>.*?) ?\| (?P<tracks>.*?) ?\| \[page\]\(teach/\w+\.md\) \|$",
    re.MULTILINE,
)
TABLE = re.compile(r"^\| notebook \|.*\n(\|.*\n)+", re.MULTILINE)
TRACKS = {"90": "90 minutes", "S": "systems", "K": "kernels"}


def the_map() -> str:
    """The map as a part of a page, so that its boxes lead to pages."""
    svg = MAP.read_text(encoding="utf-8")
    svg = re.sub(r'width="(\d+)" height="\d+"', r'style="max-width: \1px"', svg, count=1)
    svg = re.sub(r'href="\.\./notebooks/([^".]+)\.\w+"', r'href="\1.html"', svg)
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
        f'<span class="track track-{letter}">{TRACKS[letter]}</span>'
        for letter in row["tracks"].split()
    )
    runs = '<span class="runs">runs in the page</span>' if runs_on_its_page(Path(file)) else ""
    needs = f"after {row['needs']}" if row["needs"] else "begin here"
    return (
        f'<li class="card"><a class="main" href="{file}.html"><b>{number}</b> '
        f"{escape(row['title'])}</a>"
        f'<span class="small">{row["minutes"]} min · {needs} · '
        f'<a href="teach/{number}.html" aria-label="teacher\'s page of {number}">'
        "teacher's page</a></span>"
        f'<span class="small">{tracks}{runs}</span></li>'
    )
