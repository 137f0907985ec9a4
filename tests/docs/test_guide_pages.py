"""Guide pages beside the notebooks: links that lead somewhere, a reference that is current."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("notebooks/**/*.md"),
     *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("minivllm/**/*.md")]
)  # fmt: skip


def anchor(heading):
    """GitHub's anchor of a heading: lower case, no punctuation, hyphens for spaces.

    A translated heading keeps its English one as ``<a id="...">``.
    """
    if given := re.search(r'<a id="([^"]+)"></a>$', heading.strip()):
        return given[1]
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def text_of(page):
    """A page's Markdown, without what only looks like a link in code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", text, flags=re.DOTALL)


def dead_links(page):
    """Relative links of a page that lead nowhere: no such file, or no such heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, heading = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield target
        elif heading and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            if heading not in map(anchor, headings):
                yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_relative_link_is_dead(page):
    assert list(dead_links(page)) == []


def test_a_dead_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](page.md) [b](page.md#a-page) [c](gone.md) [d](#gone) [e](x:y)\n")
    assert list(dead_links(page)) == ["gone.md", "#gone"]


def test_the_reference_is_current():
    guide = ROOT / "notebooks" / "guide"
    spec = importlib.util.spec_from_file_location("make_reference", guide / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (guide / "reference.md").read_text(encoding="utf-8")
    assert module.reference() == page, "run: python notebooks/guide/make_reference.py"
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 70
    assert all(meaning for _, _, meaning in rows)


def test_the_readme_can_be_read_in_ten_minutes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 1500
    for heading in ("Why another one", "What this is not"):
        assert f"\n## {heading}\n" in readme
