"""texts: the files of the page that have texts, in one language or in all.

A process has one language, so another one's files come from a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from jinja2 import FileSystemLoader

from minivllm.course.playground.begin import begin, questions
from minivllm.lab.translation.catalogue import languages
from minivllm.lab.translation.importing import current_language
from minivllm.lab.viz.page.page import environment, words_script
from minivllm.utils.validation import check, is_one_of

PAGE = Path(__file__).parent / "page"
SCRIPTS = (
    "draw.js", "stepping.js", "timeline.js", "dock.js", "main.js", "controls.js", "results.js",
    "learn.js", "editor.js", "link.js", "engine.js",
)  # fmt: skip
NAMES = {"en": "English", "zh": "中文"}
MADE = """\
import json, sys, minivllm
minivllm.set_language(sys.argv[1])
from minivllm.course.playground.texts import own_files
print(json.dumps(own_files(sys.argv[2])))
"""


def page_of(language: str) -> str:
    """The name of a language's page; what else has its texts is in a folder of its name."""
    return "index.html" if language == "en" else f"{language}.html"


def language_of(name: str) -> str:
    """The language of a file of the page, such as "zh.html" or "zh/words.js"; "en" of others."""
    language = name.partition("/")[0].removesuffix(".html")
    return language if language in languages() else "en"


def known_languages() -> list[str]:
    """Languages that the page has."""
    return ["en", *languages()]


def files_with_texts(engine: str, language: str) -> dict[str, str]:
    """Files with the page's texts in a language, by name.

    Args:
        engine: "worker", or "local" if the server answers requests itself.
        language: such as "zh".

    Raises:
        ValueError: for a language that there is not, or whose catalogue is broken.
    """
    check(is_one_of(language, known_languages()), "language", language,
          f"one of {', '.join(known_languages())}")  # fmt: skip
    if language == current_language():
        return own_files(engine)
    variables = {**os.environ, "MINIVLLM_LANG": "en", "PYTHONUTF8": "1"}
    made = subprocess.run([sys.executable, "-c", MADE, language, engine], env=variables,
                          capture_output=True, text=True, encoding="utf-8")  # fmt: skip
    if made.returncode:
        raise ValueError(made.stderr.strip().splitlines()[-1].removeprefix("ValueError: "))
    return json.loads(made.stdout)


def own_files(engine: str) -> dict[str, str]:
    """Files with the page's texts in this process's language, by name."""
    language = current_language()
    folder = "" if language == "en" else f"{language}/"
    jinja = environment(FileSystemLoader(PAGE))
    if engine == "worker":
        jinja.globals["site"] = f"../{folder}"
    others = [
        {"language": other, "page": page_of(other), "name": NAMES.get(other, other)}
        for other in known_languages()
        if other != language
    ]
    page = jinja.get_template("index.html")
    files = {page_of(language): page.render(engine=engine, folder=folder, others=others)}
    for name, content in (("begin", begin()), ("questions", questions())):
        files[f"{folder}{name}.json"] = json.dumps(content, separators=(",", ":"))
    if folder:
        files[f"{folder}words.js"] = words_script(jinja, map(jinja.globals["raw"], SCRIPTS))
    return files
