"""Texts of pages: found in templates and scripts, and exchanged; English pages load nothing."""

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection

import polib
import pytest
from playground_server import serving_playground
from pseudo_language import PACKAGE
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.course.playground.texts import SCRIPTS, own_files
from minivllm.lab.sim import dry_run
from minivllm.lab.translation.catalogue import KEPT, LOCALE, PAGES
from minivllm.lab.translation.pages import (
    check_translation,
    exchanged_html,
    messages_of_page,
    words,
)
from minivllm.lab.viz import save_html

HTML = """\
<html lang="{{ lang }}"><title>A page</title>
<style>.words { stays: yes }</style><script>stays("as it is")</script>{# A comment stays. #}
<p title="of a tag" class="not of it">{{ steps }} of {{ all_of(steps) }} steps,
 evenly chosen.{% if more %} More <b>words</b>{% endif %} &nbsp; 12 ×</p>
<input placeholder="Ask something" value="stays">
"""
SCRIPT = """\
const said = tr`step ${frame.step} of ${last - 1}`, HEADS = [tr`output`, "key"];
say(`<p>${tr`${n} blocks`}</p>` + plural(sizeOf(row), "more slot"), formed("#th", n) + word(", "));
"""
FOLDERS = ("course/playground/page", "lab/viz/page", "entrypoints/openai/glass")
FILES = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).iterdir())
         if path.suffix in PAGES]  # fmt: skip


def test_texts_of_a_template_are_those_between_tags_and_labels(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(HTML, encoding="utf-8")
    found = messages_of_page(path)
    assert found == [
        "A page", "of a tag", "{{ steps }} of {{ all_of(steps) }} steps, evenly chosen.",
        "More", "words", "Ask something",
    ]  # fmt: skip
    made = exchanged_html(HTML, {text: f"⟦{text}⟧" for text in found}.get)
    assert "<title>⟦A page⟧</title>" in made
    assert '<p title="⟦of a tag⟧" class="not of it">' in made
    assert (
        ">⟦{{ steps }} of {{ all_of(steps) }} steps, evenly chosen.⟧{% if more %} ⟦More⟧ " in made
    )
    assert '<script>stays("as it is")</script>{# A comment stays. #}' in made
    assert exchanged_html(HTML, {}.get) == HTML


def test_texts_of_a_script_are_those_that_are_marked(tmp_path):
    path = tmp_path / "page.js"
    path.write_text(SCRIPT, encoding="utf-8")
    messages = [
        "step {frame.step} of {last - 1}",
        "output",
        "{n} blocks",
        "# more slot",
        "#th",
        ", ",
    ]
    assert messages_of_page(path) == messages
    other = {
        "step {frame.step} of {last - 1}": "共 {last - 1} 步，第 {frame.step} 步",
        "# more slot": "另外 # 个槽位",
    }
    assert words([SCRIPT], other.get) == {
        "step {} of {}": "共 {1} 步，第 {0} 步",
        "# more slot": "另外 # 个槽位",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("第 {steps} 步", "{steps}"), ("{{ frame.step }}", "{{ frame.step }}"),
        ("{% include x %}", "{% include x %}"), ('第 "{frame.step}" 步', '"'),
        ("<b>{frame.step}</b>", "<, >"),
    ],
)  # fmt: skip
def test_a_translation_with_other_values_or_markup_is_refused_and_english_stays(text, named):
    message = "step {frame.step} of {last - 1}"
    sentence = re.escape(f"the translation {text!r} has {named}, which {message!r} has not")
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        check_translation(message, text)
    with pytest.warns(UserWarning, match=f"^{sentence}; it stays English$"):
        told = words([SCRIPT], {message: text, "output": "输出"}.get)
    assert told == {"output": "输出"}
    with pytest.warns(UserWarning, match="; it stays English$"):
        assert exchanged_html("<p>A text</p>", {"A text": "{{ config }}"}.get) == "<p>A text</p>"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_marked_literals_are_plain(path):
    """Each is found whole: in one line, without an escape, and no other literal in its values."""
    source = path.read_text(encoding="utf-8")
    marks = re.findall(r"\btr`", source)
    plain = re.findall(r"\btr`(?:[^`\\\n$]|\$\{[^{}`\n]*\})+`", source)
    assert len(plain) == len(marks)


def test_every_text_of_a_page_is_translated():
    entries = {entry.msgid: entry for entry in polib.pofile(str(LOCALE / "zh" / "lab.po"))}
    for path in FILES:
        for message in messages_of_page(path):
            entry = entries[message]
            assert not entry.fuzzy, (path.name, message)
            if KEPT not in entry.flags:
                assert entry.msgstr, (path.name, message)
                check_translation(message, entry.msgstr)


def test_english_pages_load_nothing_more(tmp_path):
    files = own_files("local")
    assert sorted(files) == ["begin.json", "index.html", "questions.json"]
    scripts = re.findall(r'<script[^>]* src="([^"]+)"', files["index.html"])
    assert scripts == ["theme.js", "draw.js", "stepping.js", "main.js"]
    save_html(dry_run([(9, 6)], num_blocks=12, block_size=4), tmp_path / "run.html")
    report = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert '<html lang="en">' in report
    assert "WORDS =" not in report


def test_the_pages_scripts_are_those_whose_words_it_has():
    there = {path.name for path in FILES if path.suffix == ".js" and messages_of_page(path)}
    own = {path.name for path in (PACKAGE / FOLDERS[0]).glob("*.js")}
    shared = {"draw.js", "stepping.js", "timeline.js", "dock.js"}
    assert there & (own | shared) <= set(SCRIPTS)


# -- the playground in two languages -----------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with serving_playground() as server:
        yield server


def get(server, path, body=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=100)
    headers = {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_each_language_has_its_page_its_texts_and_its_python(server):
    assert server.address("en") == server.url
    assert server.address("zh") == f"{server.url}zh.html"
    status, page = get(server, "/zh.html")
    assert status == 200
    assert '<html lang="zh-CN"' in page
    assert '<script src="zh/words.js">' in page
    assert re.search(r'class="language" href="index.html"[^>]*>English</a>', page)
    assert re.search(r'class="language" href="zh.html"[^>]*>中文</a>', get(server, "/")[1])
    english, chinese = (
        json.loads(get(server, f"/{folder}begin.json")[1]) for folder in ("", "zh/")
    )
    for one, other in zip(english["presets"], chinese["presets"], strict=True):
        assert re.search("[一-龥]{4}", other["lesson"])
        texts = ("title", "lesson", "numbers")
        assert {name: one[name] for name in one if name not in texts} == {
            name: other[name] for name in other if name not in texts
        }
    assert english["policy"] == chinese["policy"], "code that a link can leave out"
    wrong = {"call": "run", "workload": {"num_requests": 0}, "engines": {"1": {}}}
    body = json.dumps({"request": wrong, "seconds": 60})
    assert "a whole number from 1 to 60" in get(server, "/answer", body)[1]
    assert "1 到 60 之间的整数" in json.loads(get(server, "/zh/answer", body)[1])["error"]


def test_the_numbers_of_a_lesson_are_among_the_runs_in_each_language(server):
    for folder in ("", "zh/"):
        begin = json.loads(get(server, f"/{folder}begin.json")[1])
        for preset in begin["presets"]:
            asked = {key: preset[key] for key in ("workload", "engines")}
            body = json.dumps({"request": {"call": "run", **asked, "source": begin["policy"]},
                               "seconds": 60})  # fmt: skip
            run = json.loads(get(server, f"/{folder}answer", body)[1])["runs"]["1"]
            assert set(preset["numbers"]) <= {name for name, *_ in run["numbers"]}


def test_a_language_that_is_not_there_is_one_sentence(server):
    made = CliRunner().invoke(app, ["playground", "--no-browser", "--port", "0", "--lang", "xx"])
    assert made.exit_code == 2
    assert "language must be one of en, zh, got 'xx'" in made.output
    assert get(server, "/xx.html")[0] == 404


def test_beside_a_chinese_page_the_english_one_is_english():
    """A process has the language of MINIVLLM_LANG; other files come from a process of their own."""
    code = (
        "from minivllm.course.playground.texts import files_with_texts as made\n"
        "print(made('local', 'zh')['zh.html'].count('<html lang=\"zh-CN\"'),"
        " made('local', 'en')['index.html'].count('<html lang=\"en\"'))"
    )
    variables = {**os.environ, "MINIVLLM_LANG": "zh"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=variables)  # fmt: skip
    assert done.stdout == "1 1\n"
