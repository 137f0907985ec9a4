"""Messages: what the theme and the pages of the site say in English, with the file of each."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pages.cards import MAP, TRACKS
from pages.code import files_of_the_evening, sentence_of
from pages.drawings import labels_of
from pages.home import PARTS
from pages.notebook import NEEDS
from pages.toy import ASKED
from pages.values import TOLD

from minivllm.course.chapters import CHAPTERS
from minivllm.course.playground.texts import PAGE
from minivllm.lab.translation.pages import messages_of_page
from minivllm.lab.viz.page.page import environment, words_script

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = sorted((HERE / "theme").glob("*.js"))
CALLED = re.compile(r'\b_\("([^"]+)"\)')  # where a template says it in an expression
ENGINE = PAGE / "engine.js"  # its messages are the playground's
LONGEST = 200  # characters of a label of the map; its sentence has numbers that change
CONFIG = HERE.parent / "mkdocs.yml"


def messages() -> dict[str, list[str]]:
    """Messages, each with the files that say it."""
    found: dict[str, list[str]] = {}
    for text, path in all_messages():
        places = found.setdefault(text, [])
        if (name := path.relative_to(ROOT).as_posix()) not in places:
            places.append(name)
    return found


def all_messages() -> Iterator[tuple[str, Path]]:
    """Yield each message of a template, a script or a module, and what they show from elsewhere."""
    for path in [*sorted(HERE.rglob("*.html")), *SCRIPTS]:
        found = messages_of_page(path) + CALLED.findall(path.read_text(encoding="utf-8"))
        for text in found:
            yield text, path
    for path in [HERE.parent / "mkdocs_hooks.py", *sorted(HERE.glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "translated":
                for each in ast.walk(node.args[0]):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield each.value, path
    yield re.search("^site_description: (.+)$", CONFIG.read_text(encoding="utf-8"), re.M)[1], CONFIG
    parts = [text for title, _, able in PARTS for text in (title, able)]
    asked = [text for question, _, _, answer in ASKED.values() for text in (question, answer)]
    topics = [chapter.topic for chapter in CHAPTERS.values()]
    for text in (*parts, *asked, *TRACKS.values(), *NEEDS.values(), TOLD, *topics):
        yield text, HERE
    for _, _, what in files_of_the_evening():
        yield sentence_of(what), ROOT / "README.md"
    for path in [MAP, *sorted((ROOT / "notebooks/diagrams").glob("*.svg"))]:
        for text in labels_of(path.read_text(encoding="utf-8")):
            if path != MAP or len(text) < LONGEST:
                yield text, path


def script_of_words() -> str:
    """The script that comes before the theme's scripts, and that of Python in a page."""
    sources = [path.read_text(encoding="utf-8") for path in (*SCRIPTS, ENGINE)]
    return words_script(environment(), sources)
