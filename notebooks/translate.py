"""Siblings of notebooks and pages in another language: ``python notebooks/translate.py zh``.

Texts are kept in PO files: ``notebooks/zh/NAME.po`` of a notebook or a Markdown page, ``lab.po`` in
the package's ``lab/locale/zh`` of exercises, figures and quizzes, and ``.github/pages/zh.po`` of
what the site says beside them. A message is the English text. So a changed one is found by itself:
its old translation is kept as fuzzy, and the sibling shows the English text until a reader of the
language has looked at it. A contributor needs no other language.

1. *extract*: texts of notebooks, pages and modules are written into the PO files;
2. *build*: ``notebooks/zh/NAME.ipynb``, with the same cells and code, and other texts; or
   ``notebooks/zh/NAME.md``, of which ``project`` is the sibling of the project's README;
3. *execute*: the notebooks whose code has changed are run in their language.

``--check`` writes nothing, fails if 1 or 2 would change a file, and prints the coverage, and how
many translations lack the words of their terms (``python notebooks/terms.py zh`` lists them).
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import nbformat
import polib
import typer
from matplotlib.font_manager import get_font_names
from nbformat import NotebookNode

HERE = Path(__file__).parent
SITE = HERE.parent / ".github"
sys.path[:0] = [str(HERE), str(SITE)]
from execute import execute  # noqa: E402
from pages.messages import messages as site_messages  # noqa: E402
from terms import findings  # noqa: E402
from translate_markdown import (  # noqa: E402
    NOTICES,
    english_of,
    page_messages,
    translated,
    with_links,
)

from minivllm.course.asking.texts import one_line, read_toml  # noqa: E402
from minivllm.course.grading.stubs import documented  # noqa: E402
from minivllm.lab.translation.catalogue import KEPT, LOCALE, Catalogue  # noqa: E402
from minivllm.lab.translation.messages import (  # noqa: E402
    fields_of,
    has_words,
    message_of,
    split,
    strings,
)
from minivllm.lab.translation.pages import messages_of_page  # noqa: E402

PACKAGE = HERE.parent / "minivllm"
FONTS = {"zh": {"Noto Sans CJK SC", "Noto Sans CJK JP"}}  # plots are made with one of them
LABELS = ("title", "mark")  # arguments of figures: texts of any length
_WORD = re.compile(r"[A-Za-z]{2,}")
_PIECES = re.compile(r"(```.*?```|\n{2,})", re.DOTALL)


@dataclass(frozen=True)
class Message:
    """A text in a cell: the bytes ``start`` to ``end - 1`` of its source."""

    text: str
    start: int
    end: int
    kind: str  # "paragraph", "string" or "comment"
    node: ast.AST | None = None


def paragraphs(source: str) -> Iterator[Message]:
    """Yield the paragraphs of a text cell; fenced code and formulas stay."""
    place = 0
    for piece in _PIECES.split(source):
        size = len(piece.encode())
        if _WORD.search(piece) and not piece.startswith("```"):
            yield Message(piece, place, place + size, "paragraph")
        place += size


def code_messages(source: str) -> Iterator[Message]:
    """Yield the comments and strings of a code cell, in their order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    found = []
    tree = ast.parse(source)
    labels = _labels(tree)
    for node in strings(tree):
        if has_words(node, 1 if id(node) in labels else 2):
            start, end = (
                place(node.lineno, node.col_offset),
                place(node.end_lineno, node.end_col_offset),
            )
            found.append(Message(message_of(node) or "", start, end, "string", node))
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and _WORD.search(token.string):
            before = len(lines[token.start[0] - 1][: token.start[1]].encode())
            start = place(token.start[0], before)
            text = token.string.removeprefix("# ")
            end = start + len(token.string.encode())
            found.append(Message(text, end - len(text.encode()), end, "comment"))
    return iter(sorted(found, key=lambda message: message.start))


def _labels(tree: ast.AST) -> set[int]:
    """Ids of the strings that are titles, texts of marks, printed, or keys beside ones of words."""
    labels = set()
    names = {name for node in ast.walk(tree) for name in _names(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            printed = [branch for each in node.args for branch in _branches(each)]
            labels |= {id(each) for each in printed if message_of(each) is not None}
        if isinstance(node, ast.Constant) and node.value in names:
            labels.add(id(node))
        if not isinstance(node, ast.keyword) or node.arg not in LABELS:
            continue
        if node.arg == "title":
            labels |= {id(each) for each in ast.walk(node.value)}
        for each in ast.walk(node.value):
            if isinstance(each, ast.Tuple) and each.elts:
                labels.add(id(each.elts[-1]))
    return labels


def _branches(node: ast.AST) -> Iterator[ast.AST]:
    """A value, or the values of ``a if b else c``."""
    if isinstance(node, ast.IfExp):
        yield from (*_branches(node.body), *_branches(node.orelse))
    else:
        yield node


def _names(node: ast.AST) -> Iterator[str]:
    """Keys of a dictionary of which at least one is a text of several words."""
    keys = node.keys if isinstance(node, ast.Dict) else []
    texts = [each for each in keys if isinstance(each, ast.Constant) and has_words(each, 1)]
    if any(has_words(each) and " " in each.value for each in texts):
        yield from (each.value for each in texts)


def messages_of(cell: NotebookNode) -> Iterator[Message]:
    """Yield the messages of a cell."""
    return code_messages(cell.source) if cell.cell_type == "code" else paragraphs(cell.source)


def literal(message: Message, text: str) -> str:
    """A string or f-string of Python that says a text, as one literal."""
    assert message.node is not None, "it is a string"
    fields = fields_of(message.node)
    pieces = split(message.text, text, fields)

    def quoted(piece: str) -> str:
        escaped = piece.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
        if fields:
            escaped = escaped.replace("{", "{{").replace("}", "}}")
        return escaped.replace('"', '\\"')

    said = "".join(piece if i % 2 else quoted(piece) for i, piece in enumerate(pieces))
    return f'{"f" if fields else ""}"{said}"'


def translated_source(cell: NotebookNode, catalogue: Catalogue, language: str) -> str:
    """The source of a sibling's cell: its texts exchanged, nothing else touched."""
    source = cell.source.encode()
    for message in reversed(list(messages_of(cell))):
        text = catalogue.texts.get(message.text)
        is_old = text is None or message.text in catalogue.fuzzy
        if message.text in catalogue.kept:
            continue
        if message.kind == "paragraph" and is_old:
            text = f"{NOTICES[language][text is None]}\n\n{message.text}"
        if text is None:
            continue
        if message.kind == "string":
            text = literal(message, text)
        elif message.kind == "paragraph":
            text = with_links(text, HERE / "NAME.ipynb", language)
        source = source[: message.start] + text.encode() + source[message.end :]
    return source.decode()


def sibling(notebook: NotebookNode, catalogue: Catalogue, language: str) -> NotebookNode:
    """The notebook in a language, with the cells, ids and tags of the English one, not yet run.

    Raises:
        ValueError: for a translation whose expressions are not its message's; it names the cell.
    """
    made = nbformat.from_dict(notebook)
    for cell in made.cells:
        try:
            cell.source = translated_source(cell, catalogue, language)
        except ValueError as error:
            raise ValueError(f"cell {cell.id!r}: {error}") from error
        if cell.cell_type == "code":
            cell.outputs = []
    return made


# -- PO files -------------------------------------------------------------------------------


def notebook_messages(notebook: NotebookNode) -> dict[str, list[str]]:
    """Messages of a notebook, each with the ids of its cells."""
    found: dict[str, list[str]] = {}
    for cell in notebook.cells:
        for message in messages_of(cell):
            found.setdefault(message.text, []).append(cell.id)
    return found


SOURCES = ("course/**/*.py", "lab/*.py", "lab/viz/**/*.py", "lab/sim/*.py")
DATA = ("course/ch*/quiz.toml", "course/ch*/why.toml", "course/ideas.toml")
PRESETS = PACKAGE / "course/playground/presets.toml"
PAGES = tuple(
    f"{folder}/*.{kind}"
    for folder in ("course/playground/page", "lab/viz/page", "entrypoints/openai/glass")
    for kind in ("html", "js")
)

LABELS_DRAWN = (  # single words of figures, which are names in the code
    "tokens", "blocks", "step", "steps", "logical", "physical", "finished", "waiting", "running",
    "filled", "written", "empty", "in flight", "prefill", "decode", "verify", "idle", "seconds",
    "budget", "usable", "device", "known", "wasted", "padded", "flat", "Queues", "preempted",
    "free", "returned", "prompt", "root", "█ prefill", "• decode", "░ waiting", "× preempted",
    "| finished", "passed", "FAILED", "Hint", "Solution", "Answers", "hint", "idea", "solution",
    "host", "#th", "windows keep only the ends of prompts", "unknown", "preempted for blocks",
    "preempted by a reset of the cache", "a prompt of # tokens ahead", "What vLLM # did",
    "recorded, ended at step #", "recorded up to step #",
)  # fmt: skip


def package_messages() -> dict[str, list[str]]:
    """Messages of exercises, figures, reports, quizzes and pages, each with its files."""
    found: dict[str, list[str]] = {}

    def add(text: str, path: Path) -> None:
        places = found.setdefault(text, [])
        name = path.relative_to(PACKAGE).as_posix()
        if name not in places:
            places.append(name)

    for pattern in SOURCES:
        for path in sorted(PACKAGE.glob(pattern)):
            tree = ast.parse(path.read_bytes())
            for node in strings(tree):
                if has_words(node, 1 if isinstance(node, ast.JoinedStr) else 2):
                    add(message_of(node) or "", path)
            for word in _asked_by_name(tree):
                add(word, path)
            for text in _of_stubs(tree):
                add(text, path)
    for word in LABELS_DRAWN:
        add(word, PACKAGE / "lab" / "viz")
    for pattern in DATA:
        for path in sorted(PACKAGE.glob(pattern)):
            for text in _texts(read_toml(str(path.relative_to(PACKAGE / "course")))):
                if len(_WORD.findall(text)) > 0:
                    add(one_line(text), path)
    for preset in read_toml("playground/presets.toml")["presets"]:
        for text in (preset["title"], preset["lesson"], *preset["numbers"]):
            add(one_line(text), PRESETS)
    for pattern in PAGES:
        for path in sorted(PACKAGE.glob(pattern)):
            for text in messages_of_page(path):
                add(text, path)
    return found


def _asked_by_name(tree: ast.AST) -> Iterator[str]:
    """Words that a module looks up itself: labels, and nouns with their counters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            form = {"translated": "{}", "count": "# {}"}.get(node.func.id)
            for word in ast.walk(node.args[-1]) if form else ():
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    yield form.format(word.value)


def _of_stubs(tree: ast.Module) -> Iterator[str]:
    """Docstrings of the classes and functions that a reader fills: what the lab asks for."""
    for node in tree.body:
        if getattr(node, "name", "").lower().startswith("my"):
            yield from (text for text, _ in documented(node))


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, (list, dict)):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _texts(each)


def merged(path: Path, messages: dict[str, list[str]], language: str) -> polib.POFile:
    """The PO file of these messages, with what is translated already.

    A message that is new takes the translation of the most similar one that is gone, as fuzzy.
    """
    old = polib.pofile(str(path)) if path.exists() else polib.POFile()
    entries = {entry.msgid: entry for entry in old if not entry.obsolete}
    gone = [text for text, entry in entries.items() if text not in messages and entry.msgstr]
    new = polib.POFile(wrapwidth=100)
    new.metadata = {"Language": language, "Content-Type": "text/plain; charset=UTF-8"}
    for text, places in messages.items():
        entry = polib.POEntry(msgid=text, occurrences=[(place, "") for place in places])
        if text in entries:
            kept = entries[text]
            entry.msgstr, entry.flags = kept.msgstr, kept.flags
            entry.previous_msgid = kept.previous_msgid
        elif similar := get_close_matches(text, gone, n=1, cutoff=0.6):
            entry.msgstr = entries[similar[0]].msgstr
            entry.flags = ["fuzzy"]
            entry.previous_msgid = similar[0]
        new.append(entry)
    return new


def coverage(entries: polib.POFile) -> tuple[int, int, int]:
    """Messages that are translated, fuzzy, and all of those that shall be."""
    asked = [entry for entry in entries if KEPT not in entry.flags]
    done = sum(bool(entry.msgstr) and not entry.fuzzy for entry in asked)
    return done, sum(entry.fuzzy for entry in asked), len(asked)


# -- the command ----------------------------------------------------------------------------


class Translation:
    """The files of a language, written, or compared with what would be written.

    Args:
        language: of them, such as "zh".
        is_check: nothing is written.
    """

    def __init__(self, language: str, is_check: bool):
        self.language = language
        self.folder = HERE / language
        self.is_check = is_check
        self.stale: list[str] = []

    def name_of(self, path: Path) -> str:
        """The name of a notebook or a page by its PO file: "guide/glossary"."""
        return path.relative_to(self.folder).with_suffix("").as_posix()

    def write(self, path: Path, text: str) -> None:
        """Write a file, or note that it would change."""
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        self.stale.append(str(path.relative_to(HERE.parent)))
        if not self.is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def extract(self, path: Path, messages: dict[str, list[str]]) -> Catalogue:
        """Bring a PO file up to date, and print how much of it is translated."""
        entries = merged(path, messages, self.language)
        self.write(path, f"{entries}\n")
        if not path.exists():
            return Catalogue()
        done, fuzzy, asked = coverage(entries)
        name = self.name_of(path) if path.is_relative_to(self.folder) else path.name
        lacking = len(findings(path, self.language))
        print(f"{name:26} {done:5} of {asked:5} translated, {fuzzy} fuzzy, {lacking} terms missing")
        return Catalogue.read(path)

    def notebook(self, name: str) -> bool:
        """Extract and build a notebook; True if its sibling must be run."""
        notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
        catalogue = self.extract(self.folder / f"{name}.po", notebook_messages(notebook))
        made = sibling(notebook, catalogue, self.language)
        path = self.folder / f"{name}.ipynb"
        must_run = True
        if path.exists():
            there = nbformat.read(path, as_version=4)
            must_run = not _has_outputs_of(made, there)
            if not must_run and _sources(there) == _sources(made):
                return False
        self.stale.append(str(path.relative_to(HERE.parent)))
        if not self.is_check:
            nbformat.write(made, path)
        return must_run

    def page(self, name: str) -> None:
        """Extract and build a Markdown page."""
        source = english_of(name)
        messages = page_messages(source.read_text(encoding="utf-8"))
        catalogue = self.extract(self.folder / f"{name}.po", messages)
        self.write(self.folder / f"{name}.md", translated(source, catalogue, self.language))

    def bring_up_to_date(self, name: str) -> bool:
        """Extract and build a notebook or a page; True if it must be run.

        Raises:
            ValueError: if there is none, or for a translation that does not fit its message.
        """
        try:
            if (HERE / f"{name}.ipynb").exists():
                return self.notebook(name)
            self.page(name)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{self.language}/{name}.po: {error}") from error
        return False


def _sources(notebook: NotebookNode) -> list[tuple]:
    return [(cell.id, cell.source, cell.metadata.get("tags")) for cell in notebook.cells]


def _has_outputs_of(made: NotebookNode, there: NotebookNode) -> bool:
    """Take the outputs of the sibling that is there, if it was run with the same code."""
    cells, old = (
        [cell for cell in notebook.cells if cell.cell_type == "code"] for notebook in (made, there)
    )
    if [cell.source for cell in cells] != [cell.source for cell in old]:
        return False
    if not any(cell.outputs for cell in old):
        return False
    for cell, run in zip(cells, old, strict=True):
        cell.outputs = run.outputs
        cell.execution_count = run.execution_count
    return True


def main(
    language: str,
    names: Annotated[
        list[str] | None, typer.Argument(help="Notebooks and pages; all that have a PO file.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Write nothing; fail for what is stale.")] = False,
    run: Annotated[bool, typer.Option(help="Run the siblings that have changed.")] = True,
) -> None:
    """Bring the siblings in a language up to date."""
    if language not in NOTICES:
        raise typer.BadParameter(f"must be one of {', '.join(NOTICES)}, got {language!r}")
    translation = Translation(language, check)
    translation.extract(LOCALE / language / "lab.po", package_messages())
    translation.extract(SITE / "pages" / f"{language}.po", site_messages())
    known = sorted(translation.name_of(path) for path in translation.folder.rglob("*.po"))
    try:
        changed = [name for name in names or known if translation.bring_up_to_date(name)]
    except ValueError as error:
        print(error)
        raise typer.Exit(1) from error
    if check:
        if translation.stale:
            print("stale:", *translation.stale, sep="\n  ")
            raise typer.Exit(1)
        return
    if changed and run and (fonts := FONTS[language]).isdisjoint(get_font_names()):
        print(f"to run them a font is needed, one of {', '.join(sorted(fonts))} (fonts-noto-cjk)")
        raise typer.Exit(1)
    os.environ["MINIVLLM_LANG"] = language
    os.environ["MINIVLLM_DEVICE"] = "cpu"
    os.environ.pop("MPLBACKEND", None)
    for name in changed if run else []:
        execute(translation.folder / f"{name}.ipynb")


if __name__ == "__main__":
    typer.run(main)
