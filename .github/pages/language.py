"""The halves of the site: English from the notebooks, and Chinese below zh/ from their siblings.

A build makes the half of the language that ``MINIVLLM_LANG`` sets; the English one then has the
others made. A page has one address in all halves. What the theme and its pages say is English, and
translated by a PO file beside this one, which ``python notebooks/translate.py zh`` brings up to
date.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from pages import notebook

from minivllm.lab.translation import PAGE_TEXTS, TEXTS, of_a_page
from minivllm.lab.translation.catalogue import Catalogue, languages
from minivllm.lab.translation.importing import current_language

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LANGUAGE = current_language()
TAG = {"zh": "zh-CN"}.get(LANGUAGE, LANGUAGE)  # as HTML names it
FOLDER = "" if LANGUAGE == "en" else f"{LANGUAGE}/"
if FOLDER:
    catalogue = Catalogue.read(Path(__file__).with_name(f"{LANGUAGE}.po"))
    TEXTS.update(catalogue.texts)
    PAGE_TEXTS.update(catalogue.page_texts)

# A heading, and the anchor that GitHub needs.
HEADING = re.compile(r"^(#+ .+?)(?: <a id=\"[^\"]+\"></a>)?$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_page(text: str) -> str:
    """A text of a template, in the language of the site."""
    return of_a_page(text) or text


def path_of(uri: str) -> Path:
    """The file of a page: its sibling in this language, or the English one."""
    sibling = NOTEBOOKS / FOLDER / uri
    return sibling if sibling.exists() else NOTEBOOKS / uri


def is_translated(uri: str) -> bool:
    """True for a page in this language: it has a sibling, or is made of messages alone."""
    source = uri.replace("course.md", "README.md").removesuffix(".md")
    paths = [NOTEBOOKS / f"{source}{suffix}" for suffix in (".ipynb", ".md")]
    english = next(filter(Path.exists, paths), None)
    return english is None or path_of(str(english.relative_to(NOTEBOOKS))) != english


def text_of(uri: str) -> str:
    """Markdown of a page; that of a sibling fits the English one's place.

    So links that lead up out of its folder stay in the half, and its sections have the anchors of
    the English ones.
    """
    path = path_of(uri)
    english = NOTEBOOKS / uri
    text = markdown_of(path)
    if path == english:
        return text
    anchors = iter(anchors_of(markdown_of(english)))

    def with_anchor(heading: re.Match) -> str:
        return f"{heading[1]} {{#{next(anchors)}}}"

    return "".join(
        part if part.startswith("```") else HEADING.sub(with_anchor, part)
        for part in FENCE.split(in_half(text, "../" * uri.count("/")))
    )


def in_half(text: str, up: str) -> str:
    """A sibling's text whose links to English files stay in its half, where those have pages, too.

    Only a link to a file that has a sibling leads to English. The project's README has no page.
    """

    def link(found: re.Match) -> str:
        name, target, anchor = found.groups()
        if not (NOTEBOOKS / FOLDER / target).is_file():
            return f"[{name}]({up}{target}{anchor})"
        page = re.sub(r"\.\w+$", ".html", target.replace("README.md", "course.md"))
        return f'<a href="{up}../{page}{anchor}" lang="en">{name}</a>'

    text = re.sub(r"\[([^\]]*)\]\((?:\.\./)*project\.md[^)]*\)", r"\1", text)
    return re.sub(rf"\[([^\]]*)\]\({re.escape(up)}\.\./([^)#]*)([^)]*)\)", link, text)


def markdown_of(path: Path) -> str:
    """The Markdown of a notebook, or of a text."""
    if path.suffix == ".ipynb":
        return notebook.to_markdown(path)
    return path.read_text(encoding="utf-8")


def anchors_of(text: str) -> list[str]:
    """Anchors that Markdown gives to the headings of a text."""
    from markdown.extensions.toc import slugify, unique  # where mkdocs is

    used: set[str] = set()
    plain = re.sub(r"\]\([^)]*\)|[\[`*]", "", FENCE.sub("", text))
    return [unique(slugify(it[1].lstrip("# "), "-"), used) for it in HEADING.finditer(plain)]


def build_others(config) -> None:
    """Make the halves in other languages, each in its folder of the site.

    Raises:
        ValueError: if one cannot be built; what is wrong has been printed.
    """
    for language in languages():
        address = f"{config.site_url}{language}/" if config.site_url else ""
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--quiet", *["--strict"] * config.strict,
             "-f", config.config_file_path, "-d", Path(config.site_dir) / language],
            env=os.environ | {"MINIVLLM_LANG": language, "SITE_URL": address},
        )  # fmt: skip
        if done.returncode:
            raise ValueError(f"the half in {language!r} is not built")
