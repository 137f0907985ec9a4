"""Markdown pages in another language, and the words of its terms."""

import re
import sys
from pathlib import Path

import nbformat
import polib
import pytest
from markdown_it import MarkdownIt

from minivllm.lab.translation.catalogue import LOCALE, Catalogue

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))
import terms
import translate_markdown

NOTEBOOKS = translate_markdown.HERE

PAGE = """\
# A title of words

A paragraph in two lines, with
a [link](other.md#place) and `a name of words`.

```bash
run this   # [stays](other.md)
```

## A heading below

* an item
  that goes on
* `only_a_name`

1. a step, with [a notebook](../00.ipynb)

| term | number | name | 中文 |
|---|---|---|---|
| a block | 16 | `a name` | 块（block of words） |
| 1 | 2 | [03](other.md) | - |

> a quoted line

<!-- a comment stays -->
"""
MESSAGES = {
    "A title of words": [""],
    "A paragraph in two lines, with a [link](other.md#place) and `a name of words`.": [
        "a-title-of-words"
    ],
    "A heading below": ["a-title-of-words"],
    "an item that goes on": ["a-heading-below"],
    "a step, with [a notebook](../00.ipynb)": ["a-heading-below"],
    "term | number | name": ["a-heading-below"],
    "a block": ["a-heading-below"],
    "a quoted line": ["a-heading-below"],
}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page in a folder of notebooks, of which others have siblings."""
    monkeypatch.setattr(translate_markdown, "HERE", tmp_path)
    monkeypatch.setattr(translate_markdown, "README", tmp_path.parent / "README.md")
    for name in ("guide/page.md", "guide/other.md", "00.ipynb", "zh/00.po"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "guide/page.md").write_text(PAGE, encoding="utf-8")
    return tmp_path / "guide/page.md"


def test_texts_of_a_page_are_found_and_exchanged(page):
    assert translate_markdown.page_messages(PAGE) == MESSAGES
    texts = {text: " | ".join(f"⟦{cell}⟧" for cell in text.split(" | ")) for text in MESSAGES}
    made = translate_markdown.translated(page, Catalogue(texts=texts), "zh")
    assert (
        made
        == """\
# ⟦A title of words⟧

⟦A paragraph in two lines, with a [link](../../guide/other.md#place) and `a name of words`.⟧

```bash
run this   # [stays](other.md)
```

## ⟦A heading below⟧ <a id="a-heading-below"></a>

* ⟦an item that goes on⟧
* `only_a_name`

1. ⟦a step, with [a notebook](../00.ipynb)⟧

| ⟦term⟧ | ⟦number⟧ | ⟦name⟧ | 中文 |
|---|---|---|---|
| ⟦a block⟧ | 16 | `a name` | 块（block of words） |
| 1 | 2 | [03](../../guide/other.md) | - |

> ⟦a quoted line⟧

<!-- a comment stays -->
"""
    )


@pytest.mark.parametrize(
    ("english", "message", "made"),
    [
        ("A title\n---\n", "A title", '⟦A title⟧ <a id="a-title"></a>\n---\n'),
        ("### A title ###\n", "A title", '### ⟦A title⟧ <a id="a-title"></a>\n'),
        (
            "* one\n  * two\n\n    three\n    words\n",
            "three words",
            "* one\n  * two\n\n    ⟦three words⟧\n",
        ),
        (
            "text above:\n1. a step\n   in two\n2. two\n",
            "a step in two",
            "text above:\n1. ⟦a step in two⟧\n2. two\n",
        ),
        ("> * a quoted\n>   item\n", "a quoted item", "> * ⟦a quoted item⟧\n"),
        ("a hard  \nbreak of\nlines\n", "a hard  \nbreak of lines", "⟦a hard  \nbreak of lines⟧\n"),
        (
            "* in an item\n\n  ```\n  [code](b.md)\n  ```\n",
            "in an item",
            "* ⟦in an item⟧\n\n  ```\n  [code](b.md)\n  ```\n",
        ),
        (
            "a `name\nin two` lines [x](b.md)\n",
            "not there",
            "a `name\nin two` lines [x](../b.md)\n",
        ),
        (
            "words | more\n--- | ---\na row | `x \\| y`\n",
            "a row",
            "words | more\n--- | ---\n ⟦a row⟧ | `x \\| y`\n",
        ),
        (
            "<b>\nwords in HTML\n</b>\n\n<!-- words -->\n",
            "not there",
            "<b>\nwords in HTML\n</b>\n\n<!-- words -->\n",
        ),
        ("    code of\n    words\n", "not there", "    code of\n    words\n"),
    ],
)
def test_marks_of_markdown_stay(page, english, message, made):
    """With all other messages kept as they are."""
    page = page.parents[1] / "a.md"
    page.write_text(english, encoding="utf-8")
    kept = set(translate_markdown.page_messages(english)) - {message}
    assert (message in translate_markdown.page_messages(english)) == ("⟦" in made)
    catalogue = Catalogue(texts={message: f"⟦{message}⟧"}, kept=kept)
    assert translate_markdown.translated(page, catalogue, "zh") == made


def test_what_is_old_or_missing_on_a_page_is_english_below_a_notice(page):
    texts = dict.fromkeys(["term | number | name", "an item that goes on"], "一 | 二 | 三")
    texts["A title of words"] = "题目"
    made = translate_markdown.translated(
        page, Catalogue(texts=texts, fuzzy={"an item that goes on"}), "zh"
    )
    assert made.startswith("# 题目\n\n> 本段尚未翻译。\n\nA paragraph in two lines, with\na")
    assert "\n> 原文已更新，译文待校。\n\n* an item\n  that goes on\n" in made
    table = "| 一 | 二 | 三 | 中文 |\n|---|---|---|---|\n| a block | 16 |"
    assert f"\n> 本段尚未翻译。\n\n{table}" in made
    assert made.count("尚未翻译") == 5, "one above a table, whatever its rows lack"


def test_a_row_has_the_cells_of_its_message(page):
    catalogue = Catalogue(texts={"term | number | name": "一 | 二"})
    with pytest.raises(ValueError, match=r"'一 \| 二' has not the 3 cells of 'term \| number"):
        translate_markdown.translated(page, catalogue, "zh")


def test_links_lead_to_siblings_and_a_link_to_a_sibling_leads_back(page):
    notebooks = page.parents[1]
    (notebooks.parent / "README.md").touch()
    for name in ("zh/project.md", "00.png", "drawn.svg", "zh/drawn.svg"):
        (notebooks / name).touch()
    said = {
        "![a](../00.png) ![b](../drawn.svg)": "![a](../../00.png) ![b](../drawn.svg)",
        "[a](../00.ipynb)": "[a](../00.ipynb)",
        "[a](../../README.md#start)": "[a](../project.md#start)",
        "[a](other.md)": "[a](../../guide/other.md)",
        "[a](../guide)": "[a](../../guide)",
        "[a](../zh/guide/page.md)": "[a](../../guide/page.md)",
        "[a](../zh/project.md)": "[a](../../../README.md)",
        "[a](#here) [b](https://c.d/e.md) `[f](other.md)`": None,
    }
    for english, text in said.items():
        assert translate_markdown.with_links(english, page, "zh") == (text or english)


# -- what is shipped --------------------------------------------------------------------------

PAGES = sorted((NOTEBOOKS / "zh").rglob("*.md"))


def blocks(path):
    """The headings, lists, tables and so on of a page, with the code in its fences."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    return [(it.type, it.tag, it.info, it.type != "inline" and it.content) for it in tokens]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_blocks_and_the_code_of_the_english_one(path):
    name = path.relative_to(NOTEBOOKS / "zh").with_suffix("")
    assert blocks(path) == blocks(translate_markdown.english_of(name.as_posix()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_translation_has_the_names_and_addresses_of_its_message(path):
    """On a teacher's page code of a cell may be that of the cell's sibling."""
    code = "".join(cell.source for it in path.parents[1].glob(f"{path.stem}_*.ipynb")
                   for cell in nbformat.read(it, as_version=4).cells)  # fmt: skip
    for entry in polib.pofile(str(path.with_suffix(".po"))):
        if entry.msgstr and not entry.fuzzy:
            said, asked = map(names_and_addresses, (entry.msgstr, entry.msgid))
            others = [name for name in said if name not in asked]
            assert all(name.strip("`") in code for name in others), entry.msgid
            assert len(said) == len(asked), entry.msgid
            assert others or said == asked, entry.msgid


def names_and_addresses(text):
    return sorted(re.findall(r"`[^`]*`|\]\([^)]*\)", text))


# -- terms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_term_has_its_words(path):
    """The list is ``terms.toml``; what is right without them is named in it."""
    assert not terms.findings(path.with_suffix(".po"), "zh")


def test_few_texts_of_notebooks_and_exercises_lack_the_words_of_a_term():
    """In most of those that do, a term means something else; their share may only fall."""
    paths = [LOCALE / "zh" / "lab.po", *(NOTEBOOKS / "zh").glob("*.po")]
    num_missing = sum(len(terms.findings(path, "zh")) for path in paths)
    assert num_missing <= 0.02 * sum(len(terms.translations(path)) for path in paths)


def test_terms_are_found_whole_and_their_words_without_brackets(monkeypatch):
    monkeypatch.setattr(terms, "terms_of", {
        "zh": {"block": ["块"], "block table": ["块表"], "null block": ["占位块（null block）"]}
    }.get)  # fmt: skip
    monkeypatch.setattr(terms, "exceptions_of", {"zh": {"block": ["A block of flats"]}}.get)
    terms._any_term.cache_clear()
    missing = {
        ("Block tables", "块表"): [],
        ("Block tables", "块"): ["block table"],
        ("a `block` and [blocks](block.md) {block}", "一"): ["block"],
        ("a null-block", "占位块"): [],
        ("A block of flats, and a null block", "一栋楼"): ["null block"],
        ("blockade", "封锁"): [],
    }
    found = {each: list(terms.missing_terms(*each, "zh")) for each in missing}
    terms._any_term.cache_clear()
    assert found == missing


def test_the_glossary_has_the_words_of_the_list():
    text = (NOTEBOOKS / "guide" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "][1:]
    words = terms.terms_of("zh")
    assert [(row[0], row[-1]) for row in rows] == [(row[0], words[row[0]][0]) for row in rows]
