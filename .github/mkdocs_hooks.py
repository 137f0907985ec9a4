"""Hooks of the site: the diagrams come along, though they are not among the pages."""

import re
from pathlib import Path

from mkdocs.structure.files import File

DIAGRAMS = Path(__file__).parents[1] / "diagrams"
MAP = DIAGRAMS / "course_map.svg"
PRINT_ON_ONE_PAGE = """
<style>@media print {
  @page { size: A4 landscape; margin: 10mm; }
  body { min-height: 0; }
  .md-content__inner { columns: 2; font-size: 8pt; }
  .md-typeset, .md-typeset table:not([class]) { font-size: 8pt; }
  .md-typeset table:not([class]) :is(th, td) { min-width: 0; padding: 1pt 4pt; }
  .md-typeset :is(h1, p, .md-typeset__table) { margin: 0 0 4pt; }
}</style>
"""


def on_files(files, config):
    for path in sorted(set(DIAGRAMS.glob("*.svg")) - {MAP}):
        files.append(File.generated(config, f"diagrams/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """README.md beside the notebooks is the first page; its diagrams are now below it.

    The map becomes a part of it. What is elsewhere in the repository is no page: such a link
    becomes its text.
    """
    if page.is_homepage:
        markdown = re.sub(r"!\[[^\]]*\]\(\.\./diagrams/course_map\.svg\)", _map, markdown)
        return markdown.replace("](../diagrams/", "](diagrams/")
    if page.file.src_uri == "guide/cheat-sheet.md":
        return markdown + PRINT_ON_ONE_PAGE
    markdown = markdown.replace("](../../diagrams/", "](../diagrams/")
    return re.sub(r"\[([^\]]*)\]\(\.\./\.\./[^)]*\)", r"\1", markdown)


def _map(image):
    """The map as a part of the page, so that its boxes lead to the pages of the notebooks."""
    svg = MAP.read_text(encoding="utf-8")
    svg = re.sub(r'width="(\d+)" height="\d+"', r'style="max-width: \1px"', svg, count=1)
    svg = re.sub(r'href="\.\./notebooks/([^".]+)\.\w+"', r'href="\1.html"', svg)
    return f"<div>{svg}</div>"
