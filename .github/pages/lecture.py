"""A lecture's surroundings: how to run it, its part of the course, words, quiz, what is next."""

import re
from html import escape
from pathlib import Path

from pages.colab import colab, project_urls, repository_of
from pages.glossary import terms
from pages.language import FOLDER, LANGUAGE, NOTEBOOKS, TAG
from pages.notebook import number_of, read_cells, runs_on_its_page

from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.chapters import CHAPTERS
from minivllm.lab.translation import translated

# A question of a text, in English or in Chinese.
QUESTION = re.compile(r"(?:^|[.!:)。！：）]\s*)([A-Z][^.!?:]{12,140}\?|[^.!?:。！？：\n]{6,60}？)")
FIRST = ("Before", "First")  # topics of the lectures that all others need


def part_of(number: str, uris: dict[str, str]) -> dict:
    """The lectures of the same topic, as the list at the left.

    Args:
        number: of the lecture.
        uris: pages of all lectures by number.
    """
    topic = CHAPTERS[number].topic if number in CHAPTERS else ""
    topics = FIRST if topic in FIRST else (topic,)
    found = [it for it in uris if it in CHAPTERS and CHAPTERS[it].topic in topics]
    return {
        "title": translated("First steps" if topic in FIRST else topic or "90 minutes"),
        "uris": [uris[it] for it in found] or [uris[number]],
    }


def run_line(path: Path) -> str:
    """The line below a title: where the lecture runs, and what belongs to it."""
    number, place = number_of(path), path.relative_to(NOTEBOOKS).as_posix()
    address, speaks = colab(project_urls(), place), f"MINIVLLM_LANG={LANGUAGE} " if FOLDER else ""
    command = (
        f'pip install -e ".[notebooks]" && {speaks}jupyter lab --notebook-dir=. notebooks/{place}'
    )
    where = translated("in a clone of the repository")
    runner = '<span id="runner"></span>' if runs_on_its_page(path) else ""
    more = [f'<a href="{path.name}" download>{translated("Download the notebook")}</a>']
    if number in QUIZZES:
        asked = f"playground/index.html#chapter={number}&amp;tab=exercises"
        more += [f'<a href="#quiz">{translated("Quiz")}</a>']
        more += [f'<a href="{asked}">{translated("Exercises")}</a>']
        more += [f'<a href="teach/{number}.html">{translated("For the teacher")}</a>']
    return (
        f'<div class="runs" lang="{TAG}">{runner}<p class="command">'
        f'<code id="command" title="{where}">{escape(command)}</code>'
        f'<button type="button" data-copy="command">{translated("Copy")}</button></p>'
        f"<p>{' '.join(more)} {address}</p></div>"
    )


def repository() -> str:
    """The repository's address, or "" as long as it has none."""
    found = repository_of(project_urls())
    return found[0] if found else ""


def words_of(number: str) -> str:
    """The words that a lecture explains, for its margin."""
    found = [term for term in terms() if term.notebook == number]
    if not found:
        return ""
    rows = "".join(
        f'<dt><a href="guide/glossary.html#{it.anchor}">{escape(it.title)}</a> {it.also}</dt>'
        f"<dd>{escape(it.plain)}</dd>"
        for it in found
    )
    title = translated("Words of this lecture")
    return f'<section class="words"><b>{title}</b><dl>{rows}</dl></section>'


def quiz_of(number: str) -> str:
    """The quiz as a form, with the reason of each choice beside it; it needs no Python."""
    if number not in QUIZZES:
        return ""
    asked = []
    for place, question in enumerate(QUIZZES[number].questions):
        choices = []
        for letter, choice in question.choices.items():
            right = question.is_right(letter)
            told = question.because if right else question.wrong[choice]
            verdict = translated("Right: {told}" if right else "Not yet: {told}").format(told=told)
            mark = " data-right" if right else ""
            choices.append(
                f'<label><input type="radio" name="q{place}" value="{letter}"{mark} '
                f'data-because="{escape(verdict)}"> {escape(choice)}</label>'
            )
        asked.append(
            f"<fieldset><legend>{place + 1}. {escape(question.text)}</legend>"
            f'{"".join(choices)}<p role="status"></p></fieldset>'
        )
    return (
        f'<h2 id="quiz" lang="{TAG}">{translated("Quiz")}</h2>'
        f'<form class="quiz" lang="{TAG}">{"".join(asked)}'
        '<p class="score" role="status"></p></form>'
    )


def question_of(path: Path) -> str:
    """The first question that a notebook asks, for the card that leads to it."""
    for cell in read_cells(path)[1:]:
        text = "".join(cell["source"])
        text = re.sub(r"^#.*$|`|\*|\[|\]\([^)]*\)", "", text, flags=re.MULTILINE)
        found = re.search(QUESTION, text)
        if cell["cell_type"] == "markdown" and found:
            return " ".join(found[1].split())
    return ""
