"""The track of 90 minutes as a notebook of its own; ``python notebooks/course.py`` writes it.

It is made of the cells with the tag "fast" of five notebooks, and then run. Of a text with the tag
"fast-above" it takes what is above its first heading, of one with "fast-below" what begins at its
last heading. Two cells in front have the imports of all: the second one of what only cells use that
need a model, so that all others run in a browser.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from execute import execute
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from reading_time import write_minutes

HERE = Path(__file__).parent
PATH = HERE / "90_minutes.ipynb"

HEADER = """\
# 90 minutes: how a language model server works

After this notebook you can

1. say what a server computes in one step, and why many requests share it;
2. say where the keys and values of a token are kept, and find the place by hand;
3. say which request runs next, and which part of a prompt need not be computed.

**0 minutes.** This is the reading; five exercises take the rest of the 90. You need Python, and
attention: queries, keys, values, softmax.

Each part is a piece of a notebook of [the course](README.md), which has more of it. It ends with
an exercise: put your answer in place of `None` and run the cell. `ask` grades it, and folds a hint
and a solution below it. Words in **bold** are in the [glossary](guide/glossary.md)."""

# By notebook: a title, and what leads to its part.
PARTS = {
    "00": ("Many requests, one step", "How does a server answer many users at once?"),
    "01": (
        "What is kept: the KV cache",
        "A decode computes a single token, though the next one depends on all tokens before it. "
        "What must be kept for that?",
    ),
    "03": (
        "Where it is kept: blocks",
        "A token of Llama-2-7B leaves 512 KiB of K and V behind, so a chat of 4,096 tokens 2 GiB. "
        "Memory decides how many chats a server can hold at once. This part is about not wasting "
        "it.",
    ),
    "05": (
        "Which request runs next",
        "Before each step the *scheduler* makes a **plan**: how many tokens of which requests the "
        "step computes, and where their K and V go. The model gets all these tokens in one row, a "
        "**flat batch**. Which requests come first is the scheduler's *policy*; vLLM's first "
        "engine, V0, had another one than today's, V1.",
    ),
    "08": (
        "What need not be computed again",
        "Blocks can also be found by what is in them. Then a prompt whose beginning was served "
        "before is computed only in part.",
    ),
}

END = """\
## Take away

* A **step** is one pass of the model over tokens of many requests. Which requests are in it is
  decided anew each time.
* A token's K and V never change, so they are kept: in **blocks** that may be anywhere, found
  through a **block table**.
* A block's hash stands for everything up to its end. So a known beginning of a prompt is found,
  and only the rest is computed.

[The course](README.md) goes on from here: what happens when the blocks run out (06), how long
prompts are cut (07), how attention reads the blocks (09)."""


def build() -> NotebookNode:
    """Make the notebook of the others as they are now; nothing is executed."""
    parts = {number: list(fast_cells(number)) for number in PARTS}
    for count, (number, cells) in enumerate(parts.items(), start=1):
        title, text = PARTS[number]
        text += f" (From [notebook {number}]({path_of(number).name}).)"
        cells[0].source = f"# {count} · {title}\n\n{text}\n\n{cells[0].source}"
        for cell in cells:
            cell.id = f"{number}-{cell.id}"
    whole = [new_markdown_cell(HEADER, id="header"), imports(parts)]
    whole += imports_with_model(parts)
    whole += [cell for cells in parts.values() for cell in cells]
    whole.append(new_markdown_cell(END, id="end"))
    for cell in whole:  # the slides are made of all
        kept = (tag for tag in tags_of(cell) if tag.startswith(("nbval", "needs")))
        cell.metadata.tags = ["core", *kept]
    return new_notebook(cells=whole)


def write() -> None:
    nbformat.write(build(), PATH)
    execute(PATH)
    write_minutes(PATH)


def path_of(number: str) -> Path:
    return next(HERE.glob(f"{number}_*.ipynb"))


def notebook(number: str) -> NotebookNode:
    return nbformat.read(path_of(number), as_version=4)


def tags_of(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def fast_cells(number: str) -> Iterator[NotebookNode]:
    """Yield the cells of a notebook that the track takes, cut as their tags say."""
    for cell in notebook(number).cells:
        pieces = re.split(r"^(?=##+ )", cell.source, flags=re.MULTILINE)
        taken = {"fast": cell.source, "fast-above": pieces[0], "fast-below": pieces[-1]}
        for tag in taken.keys() & set(tags_of(cell)):
            cell.source = taken[tag].strip()
            yield cell


def imports(parts: dict[str, list[NotebookNode]]) -> NotebookNode:
    """One cell for all first code cells: what is used of their imports, and their other lines."""
    known, others = first_cells(parts)
    used = words_of([*others, *sources(parts, with_model=False)])
    lines = [*import_lines(known, used), "", *others]
    return new_code_cell("\n".join(lines), id="imports")


def imports_with_model(parts: dict[str, list[NotebookNode]]) -> list[NotebookNode]:
    """A cell for what only cells that need a model use of the imports; none if that is nothing."""
    known, others = first_cells(parts)
    without = words_of([*others, *sources(parts, with_model=False)])
    lines = import_lines(known, words_of(sources(parts, with_model=True)) - without)
    tags = {"tags": ["needs-model"]}
    cell = new_code_cell("\n".join(lines).strip(), id="imports-model", metadata=tags)
    return [cell] if cell.source else []


def first_cells(parts: dict[str, list[NotebookNode]]) -> tuple[dict[str, set[str]], list[str]]:
    """By module the names that the first code cells import, "" for modules; and other lines."""
    known: dict[str, set[str]] = {"": set()}
    others: dict[str, None] = {}  # each once, in order
    for number in parts:
        first = next(cell.source for cell in notebook(number).cells if cell.cell_type == "code")
        for node in ast.parse(first).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else ""
                known.setdefault(module, set()).update(alias.name for alias in node.names)
            else:
                others[ast.get_source_segment(first, node)] = None
    return known, list(others)


def sources(parts: dict[str, list[NotebookNode]], with_model: bool) -> list[str]:
    """Code of the cells that need a model, or of all others."""
    cells = [cell for part in parts.values() for cell in part if cell.cell_type == "code"]
    return [cell.source for cell in cells if ("needs-model" in tags_of(cell)) == with_model]


def words_of(sources: list[str]) -> set[str]:
    return set(re.findall(r"\w+", "\n".join(sources)))


def import_lines(known: dict[str, set[str]], used: set[str]) -> list[str]:
    """Lines that import what is used."""
    lines = [f"import {name}" for name in sorted(known[""] & used)]
    lines.append("")
    for module, names in sorted(known.items()):
        if module and names & used:
            lines.append(f"from {module} import {', '.join(sorted(names & used))}")
    return lines
