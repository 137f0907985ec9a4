"""The glossary: a table in the repository, an entry with an address for each term on the site."""

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from pages.language import FOLDER, NOTEBOOKS, path_of

from minivllm.lab.translation import translated

URI = "guide/glossary.md"
PATH = NOTEBOOKS / URI
ROWS = re.compile(r"^\|[-|]+\n((?:\| .+ \|\n)+)", re.MULTILINE)
TABLE = re.compile(r"^\|.*\n(\|.*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Term:
    """A row of the glossary; the line is in the language of the site."""

    name: str
    line: str
    notebook: str
    old: str
    new: str
    chinese: str

    @property
    def anchor(self) -> str:
        return "term-" + re.sub(r"\W+", "-", self.name.lower()).strip("-")

    @property
    def title(self) -> str:
        """The term in the language of the site."""
        return self.chinese if FOLDER else self.name

    @property
    def also(self) -> str:
        """HTML of the term in the other language."""
        language, text = ("en", self.name) if FOLDER else ("zh", self.chinese)
        return f'<span lang="{language}">{escape(text)}</span>'

    @property
    def plain(self) -> str:
        """The line without Markdown."""
        return re.sub(r"`|\[|\]\([^)]*\)", "", self.line)


@cache
def terms() -> tuple[Term, ...]:
    """All rows, in the order of the table."""
    rows = zip(rows_of(PATH), rows_of(path_of(URI)), strict=True)
    return tuple(Term(row[0], told[1], *row[2:]) for row, told in rows)


def rows_of(path: Path) -> list[list[str]]:
    """Cells of the rows of the first table in a file."""
    rows = ROWS.search(path.read_text(encoding="utf-8"))[1].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def with_entries(markdown: str) -> str:
    """The page with an entry for each term, in the order of the alphabet."""
    entries = "".join(map(entry, sorted(terms(), key=lambda term: term.name.lower())))
    return TABLE.sub(lambda _: f'<div class="terms">{entries}</div>\n', markdown, count=1)


def entry(term: Term) -> str:
    names = [f"{where} {code(name)}" for where, name in (("0.32.0", term.new), ("0.6.6", term.old))
             if name != "-"]  # fmt: skip
    where = translated("lecture {number}").format(number=term.notebook)
    return (
        f'<section class="term"><h3 id="{term.anchor}">{escape(term.title)} {term.also}</h3>'
        f"<p>{code(term.line)}</p>"
        f'<p class="small">{where}{"".join(f" · {name}" for name in names)}</p>'
        "</section>"
    )


def code(text: str) -> str:
    """A line of the table as HTML: only names in backquotes have a look of their own."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def with_notes(html: str) -> str:
    """A lecture in which the first use of each term, in bold, has its line and its other name."""
    known = {
        name.lower(): term
        for term in terms()
        for name in (term.name, *re.split("[（）、]", term.chinese))
    }
    seen = set()

    def note(found: re.Match) -> str:
        term = known.get(re.sub(r"<[^>]+>", "", found[1]).lower().rstrip("s"))
        term = term or known.get(found[1].lower())
        if term is None or term in seen:
            return found[0]
        seen.add(term)
        told = escape(f"{term.plain} · {term.name if FOLDER else term.chinese}")
        href = f"guide/glossary.html#{term.anchor}"
        return f'<a class="word" href="{href}" data-note="{told}"><strong>{found[1]}</strong></a>'

    return re.sub(r"<strong>([^<]+)</strong>", note, html)
