"""Markdown pages in another language: their messages, and the text of a sibling.

A heading, a paragraph and an item of a list are messages, each on one line. So is a row of a table,
of which the cells that have words are asked for, with `` | `` between them. Code in fences stays,
and so does what has no words but names in backquotes, numbers and addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from markdown_it import MarkdownIt

from minivllm.lab.translation.catalogue import Catalogue

HERE = Path(__file__).parent
README = HERE.parent / "README.md"  # of the project; the course has one, too
PROJECT = "project"  # so its sibling is project.md
NOTICES = {  # above an English paragraph: its translation is old, or there is none
    "zh": ("> 原文已更新，译文待校。", "> 本段尚未翻译。"),
}
BETWEEN = " | "  # cells of a row
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_WORD = re.compile(r"[A-Za-z]{2,}")
_NO_TEXT = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")  # names, addresses, tags
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_CELLS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"`[^`]*`|\]\((?![A-Za-z]+:|[#/<])([^)#\s]+)")
_SOFT_BREAK = re.compile(r"(?<!  )(?<!\\)\n")


@dataclass(frozen=True)
class Text:
    """A message of a page, and the lines ``start`` to ``end - 1`` that it stands in.

    Args:
        message: the English text.
        start: its first line, from 0.
        end: the line behind its last one.
        block: the first line of its paragraph, list or table: a notice can stand above.
        section: the heading above it, as an anchor.
        before: the mark of a heading, an item or a quotation in front of it.
        has_anchor: true for a heading below the title.
        cells: places of the cells that have words, in a row of a table.
    """

    message: str
    start: int
    end: int
    block: int
    section: str
    before: str = ""
    has_anchor: bool = False
    cells: tuple[int, ...] = ()

    def line(self, old: str, text: str) -> str:
        """Its line with a translation; ``old`` has the cells of a row that stay.

        Raises:
            ValueError: for a row with more cells than the message has, or fewer.
        """
        if not self.cells:
            address = f' <a id="{anchor(self.message)}"></a>' if self.has_anchor else ""
            return f"{self.before}{text}{address}"
        told = text.split(BETWEEN)
        if len(told) != len(self.cells):
            raise ValueError(f"{text!r} has not the {len(self.cells)} cells of {self.message!r}")
        row = _CELLS.split(old)
        for place, cell in zip(self.cells, told, strict=True):
            row[place] = f" {cell} "
        return "|".join(row)


def anchor(heading: str) -> str:
    """The address of a heading on its page: lower case, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def has_words(text: str) -> bool:
    """True for a text that has words beside names in backquotes and addresses."""
    return bool(_WORD.search(_NO_TEXT.sub("]", text)))


def texts(source: str) -> Iterator[Text]:
    """Yield the messages of a page, in their order."""
    lines = source.splitlines()
    block = 0
    section = ""
    row = range(0)
    tag = ""
    for token in _MARKDOWN.parse(source):
        if token.map is None:
            continue
        if token.nesting == 1:
            tag = token.tag
        start = token.map[0]
        if token.level == 0:
            block = start
        if token.type == "tr_open":
            row = range(start, start + 1)
            found = _row(lines[start], Text("", start, start + 1, block, section))
        elif token.type == "inline" and start not in row:
            first = token.content.split("\n")[0]
            found = Text(
                message=_SOFT_BREAK.sub(" ", token.content),
                start=start,
                end=start + token.content.count("\n") + 1,
                block=block,
                section=section,
                before=lines[start][: lines[start].index(first)],
                has_anchor=bool(re.fullmatch("h[2-6]", tag)),
            )
            if re.fullmatch("h[1-6]", tag):
                section = anchor(found.message)
        else:
            continue
        if has_words(found.message):
            yield found


def _row(line: str, text: Text) -> Text:
    """A row of a table: its cells that have words, and are English."""
    cells = [cell.strip() for cell in _CELLS.split(line)]
    asked = [i for i, cell in enumerate(cells) if has_words(cell) and not _CHINESE.search(cell)]
    return replace(text, message=BETWEEN.join(cells[i] for i in asked), cells=tuple(asked))


def page_messages(source: str) -> dict[str, list[str]]:
    """Messages of a page, each with the headings that it stands under."""
    found: dict[str, list[str]] = {}
    for text in texts(source):
        found.setdefault(text.message, []).append(text.section)
    return {message: sorted(set(places)) for message, places in found.items()}


def fenced_lines(source: str) -> set[int]:
    """The lines of code in fences, and of indented code."""
    found: set[int] = set()
    for token in _MARKDOWN.parse(source):
        if token.type in ("fence", "code_block") and token.map:
            found |= set(range(token.map[0], token.map[1]))
    return found


# -- links ----------------------------------------------------------------------------------


def english_of(name: str) -> Path:
    """The page of which ``zh/NAME.md`` is the sibling."""
    return README if name == PROJECT else HERE / f"{name}.md"


def sibling_of(file: Path, language: str) -> Path:
    """The place of a file's sibling, which need not be there."""
    if file == README:
        return HERE / language / f"{PROJECT}.md"
    return HERE / language / os.path.relpath(file, HERE)


def leads_to(file: Path, language: str) -> Path:
    """The file that a sibling's link leads to: a sibling, if there is one.

    A link to a sibling is one to the other language. So it leads back to the English file.
    """
    folder = HERE / language
    if file.is_relative_to(folder):
        name = file.relative_to(folder)
        return english_of(str(name.with_suffix(""))) if name.suffix == ".md" else HERE / name
    sibling = sibling_of(file, language)
    has_po = file.suffix in (".md", ".ipynb") and sibling.with_suffix(".po").exists()
    return sibling if file.is_file() and (has_po or sibling.exists()) else file


def with_links(text: str, source: Path, language: str) -> str:
    """A text of a file as its sibling says it: links lead to siblings, or to English files."""
    page = sibling_of(source, language)

    def link(match: re.Match[str]) -> str:
        if match[1] is None:  # code
            return match[0]
        file = Path(os.path.normpath(source.parent / match[1]))
        return f"]({os.path.relpath(leads_to(file, language), page.parent)}"

    return _LINK.sub(link, text)


def translated(source: Path, catalogue: Catalogue, language: str) -> str:
    """The text of a page's sibling. Above what stays English is a notice.

    A heading keeps its English address, so that links need not know its translation.

    Raises:
        ValueError: for a row whose translation has other cells.
    """
    english = source.read_text(encoding="utf-8")
    lines: list[str | None] = []
    code = fenced_lines(english)
    for is_code, numbered in groupby(enumerate(english.splitlines()), lambda it: it[0] in code):
        part = "\n".join(line for _, line in numbered)
        lines += (part if is_code else with_links(part, source, language)).split("\n")
    notices: dict[int, str] = {}
    for text in texts(english):
        said = catalogue.texts.get(text.message)
        if text.message in catalogue.kept:
            continue
        if said is None or text.message in catalogue.fuzzy:
            notices[text.block] = max(notices.get(text.block, ""), NOTICES[language][said is None])
            continue
        line = text.line(lines[text.start] or "", with_links(said, source, language))
        lines[text.start : text.end] = [line, *[None] * (text.end - text.start - 1)]
    shown = [
        f"{notices[i]}\n\n{line}" if i in notices else line
        for i, line in enumerate(lines)
        if line is not None
    ]
    return "\n".join(shown) + "\n"
