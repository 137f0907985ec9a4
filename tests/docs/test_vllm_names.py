"""Names of vLLM in our documents exist: files, classes and functions, at the version named."""

import ast
import json
import re
import tokenize
from pathlib import Path

import pytest
import vllm_names as vllm

NOTEBOOKS = sorted((vllm.ROOT / "notebooks").glob("*.ipynb"))
PAGES = [
    vllm.ROOT / "README.md",
    *sorted(
        page
        for page in (vllm.ROOT / "notebooks").rglob("*.md")
        if page.name not in ("vllm-map.md", "glossary.md")  # their columns: test_guide.py
    ),
    *sorted((vllm.ROOT / "minivllm").rglob("*.md")),
]
MODULES = sorted((vllm.ROOT / "minivllm").rglob("*.py"))


def sources(paths: list[Path], name) -> list:
    """One case a file, named as its readers call it."""
    return [pytest.param(path, id=name(path)) for path in paths]


def paragraphs(text: str) -> list[str]:
    """Cut at empty lines, list items and table rows."""
    return [p for p in re.split(r"\n\s*\n|\n(?=\s*[*-] |\|)", text) if p.strip()]


def findings(paragraph: str, whole: bool) -> list[str]:
    """Wrong names; they count in a paragraph that speaks of vLLM's files, or if ``whole``."""
    wrong = vllm.wrong_paths(paragraph) + vllm.wrong_places(paragraph)
    if whole or vllm.PATH.search(paragraph):
        wrong += vllm.wrong_names(paragraph, vllm.quoted(paragraph))
    return wrong


def findings_in_notebook(path: Path) -> list[str]:
    """``[cell] finding``, cells counted from 0."""
    wrong = []
    for index, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "markdown":
            wrong += [f"[{index}] {finding}" for finding in vllm.wrong_paths(source)]
            continue
        section = source.split("## In real vLLM")
        for part, whole in ((section[0], False), (" ".join(section[1:]), True)):
            rest = part.split("\n## ")[0] if whole else part
            for paragraph in paragraphs(rest):
                wrong += [f"[{index}] {f}" for f in findings(paragraph, whole)]
    return wrong


def remarks(path: Path) -> list[str]:
    """Docstrings' brackets and comments that speak of vLLM."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        if isinstance(body, list) and (text := _docstring(node)):
            groups = re.findall(r"\((?:[^()]|\([^()]*\))*\)", text)
            found += [g for g in groups if "vLLM" in g or "vllm/" in g or "V0" in g]
            found += [p for p in paragraphs(text) if "vllm/" in p and not any(map(p.count, found))]
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        found += [t.string for t in tokens if t.type == tokenize.COMMENT and "vllm/" in t.string]
    return found


def _docstring(node) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""


@pytest.mark.slow
@pytest.mark.parametrize("path", sources(NOTEBOOKS, lambda p: p.stem))
def test_a_notebook_names_what_vllm_has(path):
    assert not findings_in_notebook(path)


@pytest.mark.parametrize("path", sources(PAGES, lambda p: str(p.relative_to(vllm.ROOT))))
def test_a_page_names_what_vllm_has(path):
    text = path.read_text(encoding="utf-8")
    assert not [f for paragraph in paragraphs(text) for f in findings(paragraph, False)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sources(MODULES, lambda p: str(p.relative_to(vllm.ROOT / "minivllm")))
)
def test_a_docstring_names_what_vllm_has(path):
    wrong = []
    for remark in remarks(path):
        remark = re.sub(r"/\n\s*", "/", remark)  # a path broken at the end of a line
        names = vllm.quoted(remark) + vllm.plain(remark)
        wrong += vllm.wrong_paths(remark) + vllm.wrong_places(remark)
        wrong += vllm.wrong_names(remark, names)
    assert not wrong


@pytest.mark.parametrize(
    ("paragraph", "finding"),
    [
        ("see `vllm/v1/core/block_poll.py`", "there is no vllm/v1/core/block_poll.py"),
        ("see `vllm/core/scheduler.py`", "vllm/core/scheduler.py is of 0.6.6: say so"),
        ("`Scheduler` in `vllm/v1/core/block_pool.py`",
         "Scheduler is not in vllm/v1/core/block_pool.py"),
        ("`BlockPool.alloc` (`vllm/v1/core/`)", "there is no BlockPool.alloc"),
        ("`CopyOnWriteTracker`, `vllm/v1/core/`", "CopyOnWriteTracker is of 0.6.6: say so"),
        ("`vllm/v1/worker/block_table.py`",
         "vllm/v1/worker/block_table.py is the old runner's; "
         "vllm/v1/worker/gpu/block_table.py runs now"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(paragraph, finding):
    assert findings(paragraph, False) == [finding]


def test_what_is_there_is_not():
    paragraph = """`BlockPool` and `KVCacheBlock` are in `vllm/v1/core/`, `Scheduler.schedule` in
    `vllm/v1/core/sched/scheduler.py`; in 0.6.6 `Sequence.fork` (`vllm/sequence.py`)."""
    assert not findings(paragraph, True)
