"""Translation: texts are exchanged when modules are compiled; siblings of notebooks."""

import ast
import os
import re
import subprocess
import sys
import textwrap
from copy import deepcopy
from pathlib import Path

import nbformat
import polib
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from minivllm.course.grading.stubs import documented, stub_source
from minivllm.lab.translation import TEXTS
from minivllm.lab.translation.catalogue import KEPT, LOCALE, Catalogue, languages
from minivllm.lab.translation.importing import compile_translated, set_language
from minivllm.lab.translation.messages import has_words, message_of, strings
from minivllm.lab.viz.draw.svg import text_width
from minivllm.lab.viz.draw.wording import block_list, count, num_columns, ordinal, wrap

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))
import translate

CODE = '''\
"""A docstring of words stays."""
KEY = "tokens"
NAME = "step by step"

def told(step, way="no way"):
    """Another docstring that stays."""
    return f"step {step:2d} of {len(way)!r} took {'two or more' if step else 'none'}: {way}"
'''


def run(texts):
    names = {}
    exec(compile_translated(CODE.encode(), "told.py", Catalogue(texts=texts)), names)
    return names


def test_messages_are_strings_with_words_and_no_docstrings():
    found = [message_of(node) for node in strings(ast.parse(CODE)) if has_words(node)]
    assert found == [
        "step by step",
        "no way",
        "step {step:2d} of {len(way)!r} took {'two or more' if step else 'none'}: {way}",
    ]


def test_texts_are_exchanged_and_expressions_keep_their_values():
    english = run({})
    message = "step {step:2d} of {len(way)!r} took {'two or more' if step else 'none'}: {way}"
    texts = {
        "step by step": "一步一步",
        "two or more": "两个以上",
        message: "{way}：第 {step:2d} 步，{'two or more' if step else 'none'}",
        "tokens": "never: it is a key",
    }
    other = run(texts)
    assert (english["NAME"], other["NAME"]) == ("step by step", "一步一步")
    assert other["KEY"] == english["KEY"] == "tokens"
    assert english["told"](3) == "step  3 of 6 took two or more: no way"
    assert other["told"](3) == "no way：第  3 步，两个以上"
    assert other["told"].__doc__ == english["told"].__doc__


def test_a_translation_with_an_expression_of_its_own_is_refused():
    message = "step {step:2d} of {len(way)!r} took {'two or more' if step else 'none'}: {way}"
    with pytest.raises(ValueError, match=r"told\.py: the translation .*\{steps\}.* has braces"):
        run({message: "第 {steps} 步"})


def test_a_language_that_is_not_there_or_a_broken_catalogue_is_one_sentence(tmp_path):
    known = ", ".join(["en", *languages()])
    with pytest.raises(ValueError, match=rf"^language must be one of {known}, got 'xx'$"):
        set_language("xx")
    broken = tmp_path / "lab.po"
    broken.write_text('msgid "a"\nmsgstr "b\nwhat')
    with pytest.raises(ValueError, match=r"the catalogue .*lab\.po cannot be read: "):
        Catalogue.read(broken)
    assert not TEXTS, "English goes on"


def in_a_process(code, **environment):
    """Output of a process that runs this code, and its warnings."""
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout, made.stderr


SHOWN = """
import sys
from minivllm.exercises import quiz
from minivllm.course.asking.answers import is_blank
print([name for name in sys.modules if name.startswith("minivllm.lab.translation.")])
print(quiz["03"])
"""


def test_nothing_is_loaded_while_no_language_is_set_and_a_wrong_one_is_a_warning(tmp_path):
    plain, _ = in_a_process(SHOWN, XDG_CACHE_HOME=str(tmp_path))
    assert plain.startswith("[]\n")
    wrong, warned = in_a_process(SHOWN, XDG_CACHE_HOME=str(tmp_path), MINIVLLM_LANG="xx")
    assert "MINIVLLM_LANG: language must be one of" in warned
    assert wrong.partition("\n")[2] == plain.partition("\n")[2]
    assert not list(tmp_path.iterdir())


def test_choices_are_drawn_by_the_english_text(monkeypatch):
    from minivllm.course.asking.quiz import QUIZZES
    from minivllm.course.asking.texts import one_line, read_toml

    english = [question.answer for question in QUIZZES["03"].questions]
    for entry in read_toml("ch03/quiz.toml")["questions"]:
        for text in (entry["text"], entry["right"]):
            monkeypatch.setitem(TEXTS, one_line(text), f"⟦{one_line(text)}⟧")
    other = QUIZZES["03"].questions
    assert all(question.text.startswith("⟦") for question in other)
    assert [question.answer for question in other] == english


def test_a_stub_asks_in_the_language_and_its_code_is_the_same(monkeypatch):
    from minivllm.course import labs

    plain = stub_source(labs.copy_on_write.stub)
    asked = [text for text, _ in documented(ast.parse(plain))]
    assert len(asked) == 2
    assert set(asked) <= set(translate.package_messages())
    for text in asked:
        monkeypatch.setitem(TEXTS, text, "\n".join(f"⟦{line}⟧" for line in text.splitlines()))
    other = stub_source(labs.copy_on_write.stub)
    assert [text.count("⟦") for text, _ in documented(ast.parse(other))] == [
        len(text.splitlines()) for text in asked
    ]
    assert without_texts(other) == without_texts(plain)
    assert other in repr(labs.copy_on_write)


# -- siblings of notebooks --------------------------------------------------------------------

NOTEBOOK = new_notebook(
    cells=[
        new_markdown_cell(
            "# A title of words\n\nSee [the map](guide/vllm-map.md).\n\n```\ncode stays\n```",
            id="text",
        ),
        new_code_cell(
            'prompt = "the model reads this"  # a comment, too\n'
            'print(f"step {1 + 1:2d} of\\n" f"{prompt}")\n'
            'draw(trace, title="Held", mark=[("A", 1, "kept")])',
            id="code",
        ),
    ]
)
TEXTS_OF_IT = [
    "# A title of words",
    "See [the map](guide/vllm-map.md).",
    "the model reads this",
    "a comment, too",
    "step {1 + 1:2d} of\n{prompt}",
    "Held",
    "kept",
]


def without_texts(source):
    """The syntax tree with all strings emptied, and expressions of f-strings in order."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fields = [each for each in node.values if isinstance(each, ast.FormattedValue)]
            node.values = sorted(fields, key=ast.unparse)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def test_texts_of_a_notebook_are_found_and_exchanged():
    messages = translate.notebook_messages(NOTEBOOK)
    assert list(messages) == TEXTS_OF_IT
    texts = {text: f"⟦{text}⟧" for text in messages}
    catalogue = Catalogue(texts=texts, kept={"the model reads this"})
    made = translate.sibling(NOTEBOOK, catalogue, "zh")
    text, code = (cell.source for cell in made.cells)
    assert text == (
        "⟦# A title of words⟧\n\n⟦See [the map](../guide/vllm-map.md).⟧\n\n```\ncode stays\n```"
    )
    assert 'prompt = "the model reads this"  # ⟦a comment, too⟧' in code
    assert 'print(f"⟦step {1 + 1:2d} of\\n{prompt}⟧")' in code
    assert 'title="⟦Held⟧", mark=[("A", 1, "⟦kept⟧")]' in code
    assert without_texts(code) == without_texts(NOTEBOOK.cells[1].source)


def test_one_word_is_a_message_where_it_is_printed_or_a_key_beside_texts():
    source = (
        'print("same:", a == b, "yes" if a else "no way", f"head {head}:", runs["steps"])\n'
        'compare({"one by one": a, "together": b}, mark=[("together", 1, "all")])\n'
        'settings = {"model": "opt-13b", "steps": 4}'
    )
    told = ["same:", "yes", "no way", "head {head}:", "one by one", "together", "together", "all"]
    assert [message.text for message in translate.code_messages(source)] == told


def test_a_changed_text_is_fuzzy_and_shown_in_english_with_a_notice(tmp_path):
    path = tmp_path / "notebook.po"
    first = translate.merged(path, translate.notebook_messages(NOTEBOOK), "zh")
    for entry in first:
        entry.msgstr = f"⟦{entry.msgid}⟧"
        if entry.msgid.startswith("the model"):
            entry.msgstr, entry.flags = "", [KEPT]
    first.save(str(path))
    changed = deepcopy(NOTEBOOK)
    changed.cells[0].source = "# A title of more words\n\nQuite another sentence."
    second = translate.merged(path, translate.notebook_messages(changed), "zh")
    second.save(str(path))
    entries = {entry.msgid: entry for entry in polib.pofile(str(path))}
    assert entries["# A title of more words"].fuzzy
    assert entries["# A title of more words"].previous_msgid == "# A title of words"
    assert entries["the model reads this"].flags == [KEPT]
    assert translate.coverage(second) == (4, 1, 6)
    made = translate.sibling(changed, Catalogue.read(path), "zh")
    assert made.cells[0].source == (
        "> 原文已更新，译文待校。\n\n# A title of more words\n\n"
        "> 本段尚未翻译。\n\nQuite another sentence."
    )


def test_a_changed_paragraph_needs_no_run(tmp_path, monkeypatch):
    """Outputs are the code's: they are kept while it is the same."""
    monkeypatch.setattr(translate, "HERE", tmp_path)
    english = deepcopy(NOTEBOOK)
    nbformat.write(english, tmp_path / "page.ipynb")
    translation = translate.Translation("zh", is_check=False)
    (tmp_path / "zh").mkdir()
    assert translation.notebook("page"), "it is new"
    made = nbformat.read(tmp_path / "zh/page.ipynb", as_version=4)
    made.cells[1].outputs = [new_output("stream", text="run")]
    nbformat.write(made, tmp_path / "zh/page.ipynb")
    english.cells[0].source = "# Another title"
    nbformat.write(english, tmp_path / "page.ipynb")
    assert not translation.notebook("page")
    made = nbformat.read(tmp_path / "zh/page.ipynb", as_version=4)
    assert made.cells[0].source.endswith("# Another title")
    assert made.cells[1].outputs[0].text == "run"
    english.cells[1].source = "print(2)"
    nbformat.write(english, tmp_path / "page.ipynb")
    assert translation.notebook("page")


# -- what is shipped --------------------------------------------------------------------------

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SIBLINGS = sorted((NOTEBOOKS / "zh").glob("*.ipynb"))


@pytest.mark.parametrize("path", SIBLINGS, ids=lambda path: path.stem)
def test_a_sibling_has_the_cells_and_the_code_of_its_notebook(path):
    made = nbformat.read(path, as_version=4)
    english = nbformat.read(NOTEBOOKS / path.name, as_version=4)
    assert [cell.id for cell in made.cells] == [cell.id for cell in english.cells]
    for cell, source in zip(made.cells, english.cells, strict=True):
        assert (cell.cell_type, cell.metadata) == (source.cell_type, source.metadata)
        if cell.cell_type == "code":
            assert without_texts(cell.source) == without_texts(source.source), cell.id
        else:
            assert "尚未翻译" not in cell.source, cell.id


def test_siblings_and_catalogues_are_what_their_sources_give():
    """``python notebooks/translate.py zh`` brings them up to date, and asks for no Chinese."""
    command = [sys.executable, "notebooks/translate.py", "zh", "--check"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=NOTEBOOKS.parent)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("path", [LOCALE / "zh" / "lab.po", *(NOTEBOOKS / "zh").glob("*.po")])
def test_a_translation_says_what_its_message_computes(path):
    """Its expressions are the message's; some may be left out if the entry says so (plurals)."""
    for entry in polib.pofile(str(path)):
        if not entry.msgstr or entry.fuzzy:
            continue
        said, asked = (sorted(EXPRESSION.findall(text)) for text in (entry.msgstr, entry.msgid))
        if "fewer-expressions" in entry.flags:
            assert set(said) < set(asked), entry.msgid
        else:
            assert set(said) == set(asked), entry.msgid


EXPRESSION = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")

PSEUDO = """
import sys
from minivllm.lab.translation import TEXTS, importing
from minivllm.lab.translation.catalogue import KEPT, LOCALE, Catalogue
import polib
kept = {entry.msgid for entry in polib.pofile(str(LOCALE / "zh" / "lab.po")) if KEPT in entry.flags}
done = {entry.msgid for entry in polib.pofile(str(LOCALE / "zh" / "lab.po")) if entry.msgstr}
texts = {text: f"\u27e6{text}\u27e7" for text in done - kept if "#" not in text and " " in text}
sys.meta_path.insert(0, importing.TranslatingFinder("xx", Catalogue(texts=texts)))
TEXTS.update(texts)

from minivllm.course.asking.exercise import Seeded
from minivllm.exercises import ch03, ch05, ch08, quiz
from minivllm.lab.sim import dry_run, prefix_hits
from minivllm.lab.viz import block_grid, block_table, filmstrip, prefix_tree, timeline

trace = dry_run([(9, 6), (6, 5), (5, 10)], num_blocks=12, block_size=4)
for drawn in (timeline(trace), block_grid(trace, 3), block_table(trace, 3),
              filmstrip(trace, steps=[0, 2, 3]), prefix_tree(trace, 3)):
    assert "\u27e6" in drawn.svg, drawn
for chapter in (ch03, ch05, ch08):
    for name in [name for name, kind in vars(chapter).items() if isinstance(kind, Seeded)]:
        exercise = getattr(chapter, name)(seed=0)
        exercise.check(exercise.solve())
        assert "\u27e6" in repr(exercise), name
for number in ("00", "03", "08"):
    for question in quiz[number].questions:
        question.check(question.answer)
print("as in English")
"""


def test_no_text_is_a_key():
    """A language in which each text is in brackets: all is drawn and graded as in English."""
    told, _ = in_a_process(PSEUDO)
    assert told == "as in English\n"


STEPS_TOLD = """
import re
from minivllm.exercises import labs
from minivllm.lab.sim import dry_run
from minivllm.lab.viz.model.frames import frames
trace = dry_run([(9, 10), (7, 12), (6, 8)], num_blocks=9, block_size=4, max_model_len=32,
                max_num_batched_tokens=8)
words = [frame.words for frame in frames(trace)]
told = " ".join(words)
assert "被抢占并归还块" in told and "重算 15 个 token 中的最后 7 个" in told, told
print(sorted(set(re.findall("[a-z]{2,}", told))))
print(repr(labs.cap))
"""


def test_a_step_and_a_stub_are_told_in_the_language_that_is_set(tmp_path):
    told, _ = in_a_process(STEPS_TOLD, MINIVLLM_LANG="zh", XDG_CACHE_HOME=str(tmp_path))
    words, stub = told.split("\n", 1)
    assert words == "['length', 'token']"
    assert 'requests):\n    """一个请求还缺 num_new 个 token' in stub
    assert stub.endswith('个数。\n    """\n    raise NotImplementedError\n\n')


VERDICTS = """
import re
import sys
sys.path[:0] = ["tests", "tests/lab"]
from test_wrong_answers import BANK, EXERCISES, KINDS, NotYet, read

said = 0
for name, number, seed, answer, _ in BANK:
    if name in KINDS and number in "00 00b 01 02 03 04 04b 05 06 06b 07 08 08b 13".split():
        try:
            KINDS[name](seed).check(read(answer, EXERCISES[number]))
        except NotYet as verdict:
            said += 1
            told = re.sub("(运行失败|抛出了|个样本太多).*", "", str(verdict))  # Python's own words
            assert not re.search("([a-z]+[ ,]+){2}[a-z]+", told), told
            assert not re.search("[\\u4e00-\\u9fff][.;:]", told), told
print(said > 150)
"""


def test_verdicts_have_no_english_sentence_in_them(tmp_path):
    """Those that are put together of several messages, too: on the bank of wrong answers."""
    told, _ = in_a_process(VERDICTS, MINIVLLM_LANG="zh", XDG_CACHE_HOME=str(tmp_path))
    assert told == "True\n"


def test_lines_are_broken_by_columns_and_never_before_a_full_stop():
    text = "每一步都重新决定哪些请求在批次里，decode 与 prefill 共用一步。"
    lines = wrap(text, 20)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(num_columns(line) <= 22 for line in lines), "a mark may hang over the edge"
    assert not any(line.startswith(("，", "。")) for line in lines)
    assert wrap("一句。 another one", 40) == ["一句。another one"]
    english = "A line of words that is broken where the blanks are, as before."
    assert wrap(english, 20) == textwrap.wrap(english, 20)


def test_nouns_have_the_counters_of_a_language(monkeypatch):
    assert [count(1, "block"), count(2, "entry", plural="entries")] == ["1 block", "2 entries"]
    words = {"# block": "# 个块", "#th": "第 #", ", ": "、", " and ": " 和 ", "blocks": "块"}
    for message, text in words.items():
        monkeypatch.setitem(TEXTS, message, text)
    assert (count(2, "block"), ordinal(3)) == ("2 个块", "第 3")
    assert block_list([2, 5, 7]) == "块 2、5 和 7"


def test_a_wide_character_is_a_square():
    assert text_width("块表", font_size=10) == text_width("块表", font_size=10, bold=True) == 20
