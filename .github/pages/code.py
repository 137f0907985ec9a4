"""The code page: the README's list for an evening as stations of a request's way.

Each shows the lines that matter, what vLLM has in their place, and the lectures that explain them;
the rest of its file is folded.
"""

import ast
import re
from functools import cache
from html import escape
from pathlib import Path

from pages.notebook import number_of, read_cells
from pages.values import TOLD, values_of
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from minivllm.lab.translation import translated

ROOT = Path(__file__).parents[2]
TITLE = "## Read it in an evening\n"
FILE = re.compile(r"^\d+\. \[`(.+?)`\]\((minivllm/.+?)\): (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| (`.+?`.*?) \| (.*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)
# What of a file is open at first: the way of a request leads through it.
OPEN = {
    "engine/core.py": "EngineCore.step",
    "request.py": "Sequence.__init__",
    "scheduling/scheduler.py": "Scheduler.schedule",
    "kv/manager.py": "KVCacheManager.allocate_slots",
    "kv/block_pool.py": "BlockPool.get_new_blocks",
    "kv/block_table.py": "BlockTable.slot",
    "scheduling/output.py": "SchedulerOutput",
    "worker/model_runner.py": "ModelRunner.execute_model",
    "worker/model_input.py": "ModelInput.add",
    "models/decoder.py": "Attention.forward",
    "attention/reference.py": "Reference.attend",
    "sampling/sampler.py": "Sampler.__call__",
}
NAME = re.compile(r'<span class="(n|nc)">(\w+)</span>')


def files_of_the_evening() -> list[tuple[str, str, str]]:
    """Name, path and question of each file of the README's list."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return FILE.findall(readme.split(TITLE, 1)[1].split("\n## ", 1)[0])


def code_page() -> str:
    """Markdown with the stations as HTML."""
    files = files_of_the_evening()
    strip = "".join(
        f'<li><a href="#{anchor(name)}">{escape(name)}</a></li>' for name, _, _ in files
    )
    return "\n\n".join([
        f"# {translated('Read the code')}",
        translated(
            "A request's way to its tokens in {stations} stations, without the code that makes it "
            "fast. Each shows the lines that matter, and folds the rest of its file. Names are "
            "vLLM's; those that are defined at a station are links."
        ).format(stations=len(files)),
        translated(TOLD),
        f'<ol class="stations">{strip}</ol>',
        *(station(*file) for file in files),
        translated(
            "In [Build your own engine](guide/build_your_own.md) you write five of these yourself; "
            "[the house](guide/house.md) says how the rest is arranged, and why."
        ),
    ])  # fmt: skip


def anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.removesuffix(".py"))


def station(name: str, path: str, what: str) -> str:
    """A station: its question, its lines, and beside them vLLM's file and the lectures."""
    source = (ROOT / path).read_text(encoding="utf-8")
    lines = source.splitlines()
    first, last = place_of(source, OPEN[name])
    sentence = translated(sentence_of(what))
    shown = "\n".join(lines[first - 1 : last])
    place = translated("lines {first} to {last}").format(first=first, last=last)
    whole = translated("The whole file, {lines} lines").format(lines=len(lines))
    beside = "".join(
        f"<dt>{head}</dt><dd>{text}</dd>"
        for head, text in (
            ("vLLM 0.32", vllm_of(name)),
            (translated("Lectures"), ", ".join(lectures_of(path))),
            (translated("Shown"), f"<code>{OPEN[name]}</code>, {place}"),
            (translated("In a real step"), values_of(name)),
        )
        if text
    )
    # One line of HTML: Markdown takes what is indented after an empty line for something else.
    return (
        f'## {name} {{#{anchor(name)}}}\n\n{sentence}\n\n<div class="station">'
        f'<dl class="beside">{beside}</dl>{numbered(shown, first, path)}'
        f'<details class="source"><summary>{whole}</summary>'
        f"{numbered(source, 1, path)}</details></div>"
    ).replace("\n\n\n", "\n\n")


def sentence_of(what: str) -> str:
    """What a station is for, as a sentence."""
    return what[0].upper() + what[1:] + ("" if what.endswith("?") else ".")


def place_of(source: str, name: str) -> tuple[int, int]:
    """First and last line of a class or a method, its decorators included."""
    body, found = ast.parse(source).body, None
    for part in name.split("."):
        found = next(it for it in body if getattr(it, "name", None) == part)
        body = found.body
    return min([found.lineno, *(it.lineno for it in found.decorator_list)]), found.end_lineno


def numbered(source: str, first: int, path: str) -> str:
    """Highlighted lines with their numbers, on one line of HTML."""
    formatter = HtmlFormatter(
        cssclass="highlight", linenos="inline", linenostart=first, wrapcode=True
    )
    html = highlight(source, PythonLexer(), formatter)
    return NAME.sub(lambda at: linked(at, path), html).replace("\n", "&#10;")


@cache
def defined() -> dict[str, tuple[str, str]]:
    """Classes of all stations: file and place on the page."""
    return {
        node.name: (path, anchor(name))
        for name, path, _ in files_of_the_evening()
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def linked(name: re.Match, path: str) -> str:
    """A name of a class of another station as a link to it."""
    where, place = defined().get(name[2], (path, ""))
    return name[0] if where == path else f'<a class="{name[1]}" href="#{place}">{name[2]}</a>'


def vllm_of(name: str) -> str:
    """What the map to vLLM has in the column of 0.32 for a file, as HTML."""
    table = (ROOT / "notebooks/guide/vllm-map.md").read_text(encoding="utf-8")
    found = next((row for row in ROW.findall(table) if f"`{name}`" in row[0]), None)
    if found is None or not found[2].strip():
        return translated("no counterpart")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(found[2], quote=False))


@cache
def cells_of_lectures() -> list[tuple[str, str]]:
    """Name of the notebook and source of every code cell of the lectures."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = ["".join(it["source"]) for it in read_cells(path) if it["cell_type"] == "code"]
        if not path.stem.startswith("90"):
            found += [(path.stem, source) for source in code]
    return found


def lectures_of(path: str) -> list[str]:
    """Links to the lectures that show classes of a file."""
    names = "|".join(name for name, (where, _) in defined().items() if where == path)
    shows = re.compile(rf"\bshow\([^)]*\b(?:{names})\b")
    stems = sorted({stem for stem, source in cells_of_lectures() if shows.search(source)})
    return [f'<a href="{stem}.html">{number_of(Path(stem))}</a>' for stem in stems[:6]]
