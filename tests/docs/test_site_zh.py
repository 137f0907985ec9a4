"""The site's Chinese half without a browser: what the theme says are messages, and links stay."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import polib
import pytest
from jinja2 import Environment, FileSystemLoader
from pages import (
    cards,
    code,
    drawings,
    glossary,
    guess,
    home,
    language,
    lecture,
    links,
    messages,
    notebook,
    toy,
)  # fmt: skip

from minivllm.lab.translation import TEXTS
from minivllm.lab.translation.catalogue import KEPT
from minivllm.lab.translation.pages import exchanged_html

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
THEME = ROOT / ".github/pages/theme"
CATALOGUE = polib.pofile(str(ROOT / ".github/pages/zh.po"))
SAID = {entry.msgid: entry.msgstr for entry in CATALOGUE if entry.msgstr}
TAGS = re.compile(r"<(script|style|svg|code|kbd)\b.*?</\1>|<[^>]*>", re.DOTALL)
LABELS = re.compile(r'\b(?:aria-label|title|placeholder|content)="([^"]*)"')
MESSAGE = re.compile(r"⟦[^⟦⟧]*⟧")
FIELDS = re.compile(r"\$\{[^}]*\}")
# What the fake page has, and names.
KNOWN = r"TITLE|TEXT|PART|TOLD|minivllm|English|website|width=device-width.*|summary_large.*|[ ·]"


def bracketed(text):
    """A text in a language in which each is itself in brackets."""
    return f"⟦{text}⟧"


@pytest.fixture
def brackets(monkeypatch):
    """All messages of the site in that language."""
    for text in messages.messages():
        monkeypatch.setitem(TEXTS, text, bracketed(text))


def left_over(html):
    """Texts of a page, and labels of its tags, outside of messages."""
    rest = MESSAGE.sub(" ", MESSAGE.sub(" ", html))  # one may be in another
    said = [*TAGS.sub("\n", rest).splitlines(), *LABELS.findall(rest)]
    return [text.strip() for text in said if re.search("[A-Za-z]{3,}", text)]


def test_a_page_of_the_theme_says_nothing_but_messages():
    def in_brackets(text):
        return None if text == "minivllm" else bracketed(text)

    jinja = Environment(loader=FileSystemLoader(THEME))
    loader = jinja.loader.get_source

    def source(environment, name):
        text, path, is_current = loader(environment, name)
        return exchanged_html(text, in_brackets), path, is_current

    jinja.loader.get_source = source
    jinja.filters["url"] = str
    jinja.globals["_"] = bracketed
    listed = SimpleNamespace(
        url="00.html", title="TITLE", meta={}, file=SimpleNamespace(src_uri="00.md")
    )
    part = SimpleNamespace(url="#a", title="PART", children=[])
    page = SimpleNamespace(
        url="05.html", title="TITLE", is_homepage=False, canonical_url="05.html", content="TEXT",
        meta={"untranslated": True, "part": {"title": "PART", "uris": ["00.md"]}, "after": "00.md",
              "description": "TOLD"},
        toc=SimpleNamespace(items=[SimpleNamespace(children=[part, part])]),
    )  # fmt: skip
    extra = {"tag": "xx", "folder": "zh/", "first": "", "guide": ["00.md"], "map": ""}
    config = SimpleNamespace(extra=extra, site_url="", site_description="TOLD")
    nav = SimpleNamespace(homepage=listed, pages=[listed])
    for name, shown in (("main.html", page), ("404.html", None)):
        html = jinja.get_template(name).render(
            page=shown, nav=nav, config=config, base_url=".", env=jinja
        )
        told = [text for text in left_over(html) if re.sub(KNOWN, "", text)]
        assert told == [], name
        assert len(MESSAGE.findall(html)) > 20


def test_what_pages_are_made_of_says_nothing_but_messages(brackets):
    """Pieces that Python makes: texts of notebooks and of the glossary are none of them."""
    path = NOTEBOOKS / "08_prefix_caching.ipynb"
    cells = [cell for cell in notebook.read_cells(path) if "outputs" in cell]
    for cell in cells:
        cell["outputs"] = []
        cell["source"] = [line for line in cell["source"] if "#" not in line] or ["pass"]
    readme = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    minutes = dict.fromkeys(TEXTS, 1) | {
        number: 30 for numbers in home.PARTS for number in numbers[1]
    }
    uris = {number: f"{number}.md" for number in minutes}
    pieces = {
        "run": lecture.run_line(path),
        "cells": "".join(notebook.code_cell(cell, 0, True) for cell in cells),
        "why": guess.folded(guess.with_fold("1\n\n## 2")),
        "guess": guess.guess_of("my_guess = 3  # yours?"),
        "home": home.home_page(minutes, uris, 1, "https://a.b/c"),
        "code": re.sub(r"\[[^]]*\]\([^)]*\)|`[^`]*`|^## .*$", "", code.code_page(), flags=re.M),
    }
    for name, html in pieces.items():
        told = [text for text in left_over(html) if re.search("[A-Za-z]{2,} [a-z]{2,}", text)]
        assert told == [], name
        assert MESSAGE.search(html) or name == "cells", name
    card = cards.cards(cards.TABLE.search(readme)[0])
    assert left_over(re.sub(r'<a class="main".*?</a>', "", card)) == []
    assert "⟦lecture 21⟧" in glossary.with_entries(glossary.PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(THEME.glob("*.js")), ids=lambda path: path.name)
def test_a_script_shows_nothing_but_messages(path):
    source = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    rest = re.sub(r"tr`[^`]*`", "", re.sub(r"(?<![:\"'`])//.*", "", source))
    shown = [
        *re.findall(r">\s*([A-Z][a-z]+[^<>$]*)<", rest),
        *re.findall(r'(?:textContent =|aria-label",)[^;"`]*["`]([^"`]*[a-z]{2}[^"`]*)', rest),
        *re.findall(r'(?:aria-label|title|placeholder)="([A-Z][^"$]*)', rest),
    ]
    assert [text for text in shown if re.search("[A-Za-z]{2,}", FIELDS.sub("", text))] == []


def test_all_that_the_site_says_is_in_its_catalogue():
    """And each translation has the values of its message, and no others."""
    entries = {entry.msgid: entry for entry in CATALOGUE}
    assert set(entries) == set(messages.messages())
    assert all(entry.msgstr or KEPT in entry.flags for entry in CATALOGUE)
    for text, said in SAID.items():
        fields = re.findall(r"\{[^{}]*\}", text)
        assert sorted(re.findall(r"\{[^{}]*\}", said)) == sorted(fields), text
        assert sorted(re.findall(r'href="[^"]*"', said)) == sorted(
            re.findall(r'href="[^"]*"', text)
        )


def test_an_answer_of_the_toy_has_as_many_words_in_each_language():
    """A word is a token: the runs are the same."""
    for _, _, _, answer in toy.ASKED.values():
        told = toy.words(SAID[answer])
        assert len(told) == len(toy.words(answer)) == len(answer.split())
        assert "".join(told) == SAID[answer].replace("|", "")
    assert json.loads(toy.toy())["asked"][0]["answer"][:2] == ["Room ", "for "]


def test_numbers_of_lectures_are_links_in_chinese():
    hrefs = {"05": "05.html", "06": "06.html", "06b": "06b.html", "A1": "A1.html"}
    a = '<a href="{0}.html">{0}</a>'.format

    def linked(html):
        return links.with_lectures(html, hrefs)

    assert (
        linked("需要先读 05 篇（块）和 06b 篇。")
        == f"需要先读 {a('05')} 篇（块）和 {a('06b')} 篇。"
    )
    assert linked("由 05、06 和 A1 篇组成") == f"由 {a('05')}、{a('06')} 和 {a('A1')} 篇组成"
    assert linked("05 至 06b 篇") == f"{a('05')} 至 {a('06b')} 篇"
    for same in ("共 43 篇", "第 06 步", "0.06 篇", "106 篇", "12 讲", "<code>05 篇</code>"):
        assert linked(same) == same


def test_links_of_a_sibling_stay_in_its_half(monkeypatch):
    monkeypatch.setattr(language, "FOLDER", "zh/")
    said = {
        "[A3](../A3_cpu_kernel.ipynb)": "[A3](A3_cpu_kernel.ipynb)",
        "[here](05_continuous_batching.ipynb#see)": "[here](05_continuous_batching.ipynb#see)",
        "![map](../../diagrams/course_map.svg)": "![map](../diagrams/course_map.svg)",
        "[in English](../README.md)": '<a href="../course.html" lang="en">in English</a>',
        "[README](project.md#start)": "README",
    }
    for text, there in said.items():
        assert language.in_half(text, "") == there
    there = "[a](../guide/deployment.md)"
    assert language.in_half("[a](../../guide/deployment.md)", "../") == there
    assert language.in_half("[a](../05_x.ipynb)", "../") == "[a](../05_x.ipynb)"


def test_a_page_is_its_sibling_where_there_is_one(monkeypatch):
    assert language.path_of("course.md").parent == NOTEBOOKS
    monkeypatch.setattr(language, "FOLDER", "zh/")
    zh = NOTEBOOKS / "zh"
    assert language.path_of("03_paged_blocks.ipynb") == zh / "03_paged_blocks.ipynb"
    assert language.path_of("A3_cpu_kernel.ipynb").parent == NOTEBOOKS
    assert language.path_of("guide/glossary.md") == zh / "guide/glossary.md"
    known = ("course.md", "index.md", "code.md", "03_paged_blocks.md", "guide/glossary.md")
    assert all(map(language.is_translated, known))
    assert not language.is_translated("A3_cpu_kernel.md")
    assert not language.is_translated("guide/reference.md")


def test_the_glossary_in_chinese_has_its_terms_in_the_order_of_the_english_one(monkeypatch):
    english = glossary.terms.__wrapped__()
    monkeypatch.setattr(language, "FOLDER", "zh/")
    monkeypatch.setattr(glossary, "FOLDER", "zh/")
    chinese = glossary.terms.__wrapped__()
    assert [term.anchor for term in chinese] == [term.anchor for term in english]
    for term in chinese:
        assert re.search("[一-龥]", term.line), term.name
        assert term.title == term.chinese
    pool = next(term for term in chinese if term.name == "block pool")
    assert pool.also == '<span lang="en">block pool</span>'
    monkeypatch.setattr(glossary, "terms", lambda: chinese)
    noted = glossary.with_notes("<strong>块池</strong>和<strong>预填充</strong>")
    assert noted.count('class="word"') == 2
    assert 'data-note="所有的块' in noted


def test_a_drawing_keeps_its_shape_and_says_its_labels(brackets):
    for path in sorted((NOTEBOOKS / "diagrams").glob("*.svg")):
        svg = path.read_text(encoding="utf-8")
        told = drawings.in_language(svg)
        assert MESSAGE.sub(lambda found: found[0][1:-1], told) == re.sub(
            r' textLength="[^"]*"', "", svg
        )
        assert told.count("⟦") >= len(drawings.labels_of(svg)) > 8
    assert drawings.label_of("32 min · needs 03, 05") == "⟦32 min⟧ · ⟦after 03, 05⟧"
    assert "⟦paged blocks⟧" in cards.the_map()


def test_a_question_for_the_next_card_is_found_in_chinese():
    assert "？" in lecture.question_of(NOTEBOOKS / "zh/03_paged_blocks.ipynb")
    for path in sorted((NOTEBOOKS / "zh").glob("*.ipynb")):
        asked = lecture.question_of(path)
        assert not asked or asked.endswith("？"), path.name
