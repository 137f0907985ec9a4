"""Hooks of the site: pages made of notebooks, a map with cards, and the playground beside them.

What a page shows is made by the files in pages/.
"""

import re
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.nav import Link

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from pages import notebook  # noqa: E402
from pages.cards import MAP, with_cards, with_map  # noqa: E402
from pages.code import code_page  # noqa: E402
from pages.colab import colab, project_urls  # noqa: E402
from pages.film import film  # noqa: E402

from minivllm.course.playground.build import build  # noqa: E402

DIAGRAMS = ROOT / "diagrams"
ASSETS = ("site.css", "page.js", "cells.js", "film.js")
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
    """Make pages of notebooks; README.md beside them is the page course.html."""
    home = (HERE / "pages/home.html").read_text(encoding="utf-8")
    made = {"index.md": home, "code.md": code_page()}
    for file in list(files):
        path = Path(file.abs_src_path)
        if path.suffix == ".ipynb":
            made[f"{path.stem}.md"] = notebook.to_markdown(path)
        elif file.src_uri == "README.md":
            made["course.md"] = path.read_text(encoding="utf-8")
        else:
            continue
        files.remove(file)
    pages = [File.generated(config, uri, content=text) for uri, text in made.items()]
    assets = {name: HERE / "pages" / name for name in ASSETS}
    assets |= {f"diagrams/{path.name}": path for path in DIAGRAMS.glob("*.svg") if path != MAP}
    pages += [File.generated(config, uri, abs_src_path=str(path)) for uri, path in assets.items()]
    picture, frames = film()
    config.extra["film"] = picture
    pages.append(File.generated(config, "film.json", content=frames))
    for page in pages:
        files.append(page)
    config.nav = contents(sorted(made), sorted(file.src_uri for file in files))
    return files


def contents(made, all_pages):
    """The navigation: course, guide, teachers."""
    lectures = [uri for uri in made if re.match(r"(\d\d|A\d)\w*_", uri)]
    first = {"Your own engine": "guide/build_your_own.md", "Glossary": "guide/glossary.md"}
    guide = [uri for uri in all_pages if re.match(r"guide/.*\.md", uri)]
    teach = [uri for uri in all_pages if re.match(r"teach/.*\.md", uri)]
    return [
        {"Home": "index.md"},
        {"Course": ["course.md", *lectures]},
        {"Code": "code.md"},
        *({title: uri} for title, uri in first.items()),
        {"Guide": [uri for uri in guide if uri not in first.values()]},
        {"For teachers": teach},
    ]


def on_nav(nav, config, files):
    nav.items.insert(1, Link("Playground", "playground/index.html"))
    return nav


def on_page_markdown(markdown, page, config, files):
    """Links lead to pages of this site; what is elsewhere in the repository becomes its text."""
    uri = page.file.src_uri
    if uri == "index.md":
        lectures = [file for file in files if re.match(r"(\d\d|A\d)", file.src_uri)]
        numbers = {"LECTURES": len(lectures) - 1, "RUNNING": len(notebook.ON_THEIR_PAGE)}
        for word, number in numbers.items():  # 90_minutes is made of the others
            markdown = markdown.replace(word, str(number))
        page.meta |= {"title": "minivllm", "hide": ["navigation", "toc"]}
        return markdown.replace("FILM", config.extra["film"])
    if uri == "course.md":
        markdown = with_map(with_cards(markdown))
    if (path := notebook_of(page)) is not None:
        page.meta["hide"] = ["navigation"]
        markdown = under_the_title(markdown, path)
    markdown = re.sub(r"\]\(((?:\.\./)?)README\.md", r"](\1course.md", markdown)
    markdown = re.sub(r"\]\(([^):]+)\.ipynb", r"](\1.md", markdown)
    inside = "../" if "/" in uri else ""
    markdown = re.sub(r"\]\((?:\.\./)+diagrams/", f"]({inside}diagrams/", markdown)
    outside = re.escape("../" + inside)
    markdown = re.sub(rf"\[([^\]]*)\]\({outside}[^)]*\)", r"\1", markdown)
    return markdown + (PRINT_ON_ONE_PAGE if uri == "guide/cheat-sheet.md" else "")


def on_page_content(html, page, config, files):
    path = notebook_of(page)
    return html if path is None else notebook.fill(html, path)


def on_post_page(html, page, config):
    """A name for the theme's search, which has none for a screen reader."""
    return html.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_build(config):
    """Make the playground, whose Python runs the notebooks, too."""
    try:
        build(Path(config.site_dir) / "playground")
    except ValueError as error:
        raise PluginError(str(error)) from error


def notebook_of(page):
    """The notebook that a page is made of."""
    path = ROOT / "notebooks" / f"{page.file.src_uri.removesuffix('.md')}.ipynb"
    return path if path.is_file() else None


def under_the_title(markdown, path):
    """The line below a notebook's title: where it runs, and what belongs to it."""
    title, rest = markdown.split("\n", 1)
    line = notebook.links(path) + colab(project_urls(), path.name)
    if notebook.runs_on_its_page(path):
        line = '<span id="runner"></span>' + line
    return f'{title}\n\n<p class="runs-here">{line}</p>\n{rest}'
