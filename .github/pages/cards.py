"""The course page: its map, whose boxes are links, and a card for each notebook."""

import re
from html import escape
from pathlib import Path

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
# A text of the map: its tag, and what it says.
LABEL = re.compile(r"(<text [^>]*>)([^<]*[a-z]{2}[^<]*)<")
MINUTES = re.compile(r"(\d+) min(?: · needs (.+))?")


def the_map() -> str:
    """The map as a part of a page, so that its boxes lead to pages."""
    svg = MAP.read_text(encoding="utf-8")
    svg = re.sub(r'width="(\d+)" height="\d+"', r'style="max-width: \1px"', svg, count=1)
    svg = re.sub(r'href="\.\./notebooks/([^".]+)\.\w+"', r'href="\1.html"', svg)
    if TEXTS:
        svg = LABEL.sub(lambda label: f"{label[1]}{label_of(label[2])}<", svg)
        svg = re.sub(r'(?<=aria-label=")[^"]*|(?<=<desc>)[^<]*', label_of("What needs what"), svg)
    return f'<div class="map">{svg}</div>'


def label_of(text: str) -> str:
    """A label of the map in the language of the site."""
    if (told := MINUTES.fullmatch(text)) is None:
        return translated(text)
    after = f" · {translated('after {numbers}').format(numbers=told[2])}" if told[2] else ""
    return translated("{minutes} min").format(minutes=told[1]) + after


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
