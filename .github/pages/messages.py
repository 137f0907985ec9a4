"""Messages: what the theme and the pages of the site say in English, with the file of each."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment
from pages.cards import LABEL, MAP, MINUTES, TRACKS
from pages.code import files_of_the_evening, sentence_of
from pages.home import PARTS
from pages.notebook import NEEDS
from pages.toy import ASKED
from pages.values import TOLD

from minivllm.course.chapters import CHAPTERS
from minivllm.lab.translation import TEXTS, translated

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SAID = re.compile(r"\bsay\(([\"`])((?:\\.|(?!\1).)*)\1", re.DOTALL)  # in a script
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
    jinja = Environment(extensions=["jinja2.ext.i18n"])
    for path in sorted(HERE.rglob("*.html")):
        for _, _, text in jinja.extract_translations(path.read_text(encoding="utf-8")):
            yield text, path
    for text, path in scripts_messages():
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
    for _, text in LABEL.findall(MAP.read_text(encoding="utf-8")):
        if not MINUTES.fullmatch(text):
            yield text, MAP


def scripts_messages() -> Iterator[tuple[str, Path]]:
    """Yield the messages of the theme's scripts."""
    for path in sorted((HERE / "theme").glob("*.js")):
        for _, text in SAID.findall(path.read_text(encoding="utf-8")):
            yield text, path


def words_of_scripts() -> str:
    """What scripts say, by its English, as JSON in a page; "" in English."""
    said = {text: translated(text) for text, _ in scripts_messages()}
    return json.dumps(said, ensure_ascii=False).replace("<", "\\u003c") if TEXTS else ""
