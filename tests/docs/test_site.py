"""The site without a browser: its cards and links, and its cells where there is no torch."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import AT_NIGHT
from pages import cards, code, colab, glossary, guess, lecture, links, notebook, search, toy, values

from minivllm.course.playground.texts import files_with_texts
from minivllm.lab.viz.page.page import WAYS, environment

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
SITE_HEADER = (ROOT / ".github/pages/theme/main.html").read_text(encoding="utf-8")
SITE_HEADER = SITE_HEADER[SITE_HEADER.index("{% set ways") :]
LECTURES = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("90_"))

SHORT = NOTEBOOKS / "90_minutes.ipynb"
ON_THEIR_PAGE = [path for path in (*LECTURES, SHORT) if notebook.runs_on_its_page(path)]

# In the suite two lectures, one of them with figures, and the short track; at night all of them.
FEW = [path for path in ON_THEIR_PAGE if path == SHORT or path.name[:3] in ("03_", "08_")]
SOME_OF_THEM = ON_THEIR_PAGE if AT_NIGHT else FEW

# What a browser lacks, and numba, which would only save time.
ABSENT = ("torch", "numpy", "matplotlib", "PIL", "tqdm", "httpx", "ipywidgets", "IPython", "numba")
RUN = f"""\
import json, sys
for name in {ABSENT!r}:
    sys.modules[name] = None
from minivllm.course.playground.answer import answer
for number, source in json.load(sys.stdin):
    print(answer(json.dumps({{"call": "cell", "source": source, "number": number}})))
"""


DEVICE = "Device: cpu (MINIVLLM_DEVICE=cuda: a GPU).\n"


def run(cells):
    """Replies to cells of one notebook, by number, from a Python without torch."""
    asked = [(number, "".join(cell["source"])) for number, cell in cells.items()]
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(asked), cwd=NOTEBOOKS,
                          capture_output=True, text=True, check=True)  # fmt: skip
    return dict(zip(cells, map(json.loads, done.stdout.splitlines()), strict=True))


def shown(output):
    """An output, as two of them are compared."""
    if output["output_type"] == "stream":
        return output["name"], "".join(output["text"])
    return {kind: "".join(text) for kind, text in output["data"].items()}


def test_the_workbenches_have_the_sites_ways(monkeypatch):
    """Links lead there if its address is known: beside a built playground, or by SITE_URL."""
    ways = re.findall(r'\(_\("([\w ]+)"\), "([\w/.]+)"\)', SITE_HEADER.partition("%}")[0])
    assert {"Learn", "Play", "Read the code"} <= dict(ways).keys()
    assert all(WAYS.get(name) == page for name, page in ways if name != "Glossary")
    assert {"Search", "Get the code"} <= WAYS.keys()

    def links(site):
        monkeypatch.setenv("SITE_URL", site)
        return re.findall(r'href="([^"]+)"', environment().get_template("header.html").render())

    assert links("") == []
    whole = ["index.html", *WAYS.values()]
    assert links("https://example.org/a") == [f"https://example.org/a/{page}" for page in whole]
    monkeypatch.setenv("SITE_URL", "")
    built = files_with_texts("worker", "en")["index.html"]
    assert all(f'href="../{page}"' in built for page in whole)
    assert 'class="ways"' not in files_with_texts("local", "en")["index.html"]


def test_the_cells_that_run_are_those_of_twelve_notebooks_and_of_the_short_track():
    assert len(ON_THEIR_PAGE) == len(notebook.ON_THEIR_PAGE) == 13
    assert SHORT in ON_THEIR_PAGE
    for path in set(LECTURES) - set(ON_THEIR_PAGE):
        for cell in notebook.read_cells(path):  # the short track takes pieces of them
            assert not notebook.needs_of(cell) or "fast" in cell["metadata"]["tags"], path.name


@pytest.mark.parametrize("path", SOME_OF_THEM, ids=lambda path: path.stem)
def test_without_torch_a_cell_prints_what_is_stored_and_a_marked_one_fails(path):
    code = {i: cell for i, cell in enumerate(notebook.read_cells(path)) if "outputs" in cell}
    marked = {i: cell for i, cell in code.items() if notebook.needs_of(cell)}
    others = {i: cell for i, cell in code.items() if i not in marked}
    assert len(others) > (1 if path == SHORT else 2) * len(marked)
    replies = run(others | marked)
    for number, cell in others.items():
        assert "error" not in replies[number], (number, replies[number])
        if "nbval-ignore-output" not in cell["metadata"].get("tags", ()):
            found = [shown(output) for output in replies[number]["outputs"]]
            stored = [shown(output) for output in cell["outputs"]]
            # a page has no engine: it says nothing of a device
            assert found == [each for each in stored if each != ("stdout", DEVICE)], number
    for number in marked:  # a mark is not for convenience
        kind = replies[number]["error"].split(":")[0]
        assert kind in ("ModuleNotFoundError", "NameError", "SyntaxError")


# -- pages -----------------------------------------------------------------------------------------


def test_a_page_folds_imports_and_shows_no_tag():
    path = NOTEBOOKS / "08_prefix_caching.ipynb"
    page = notebook.fill(notebook.to_markdown(path), path)
    assert 'data-cell="' not in page
    assert page.count('<details class="imports">') == 1
    assert page.count('<p class="needs">Needs a model') == 5
    assert page.count(" data-runs>") == 21
    assert page.count('<details class="answer">') == 1  # of a guess
    assert not re.search(r"needs-model|nbval|\bcore\b(?=</)", page)
    assert not notebook.is_imports("import re\nimport os\nimport ast\nprint(re)")
    plain = notebook.fill(notebook.to_markdown(LECTURES[0]), LECTURES[0])
    assert "data-runs" not in plain
    assert '<p class="needs">' not in plain


def test_an_output_is_shown_in_its_richest_form():
    def output(**data):
        kinds = {"svg": "image/svg+xml", "png": "image/png", "text": "text/plain"}
        data = {kinds[name]: [text] for name, text in data.items()}
        metadata = {"image/png": {"alt": 'a "b"'}}
        return notebook.output({"output_type": "display_data", "data": data, "metadata": metadata})

    assert output(text="x", svg="<svg/>") == '<div class="figure"><svg/></div>'
    image = output(png="AA\nAA", text="x")
    assert 'alt="a &quot;b&quot;" src="data:image/png;base64,AAAA"' in image
    assert output(text="1 < 2") == '<pre class="value">1 &lt; 2</pre>'


def test_a_cell_with_a_guess_is_a_form_and_its_answer_is_folded():
    form = guess.guess_of('my_form, my_least = "e4m3", 2  # on average; for 0.05')
    assert re.findall(r'<input name="(\w+)" value="([^"]*)"', form) == [
        ("my_form", "&#x27;e4m3&#x27;"), ("my_least", "2"),
    ]  # fmt: skip
    assert "<small>on average; for 0.05</small>" in form
    assert "yours?" not in guess.guess_of("my_guess = 6 + 32  # yours?")
    for other in ("my_guess = 3\nprint(1)", "guess = 3", "my_guess.x = 3", "print(3)"):
        assert guess.guess_of(other) is None
    text = "Nearly three times.\n\n## Build\n\nTen lines."
    html = guess.folded(guess.with_fold(text))
    assert html.index("<details") < html.index("three times") < html.index("</details>")
    assert html.index("</details>") < html.index("## Build")
    assert guess.with_fold("## Build\n\nTen lines.") == "## Build\n\nTen lines."
    for path in LECTURES:  # each has one, or a cell that does more
        page = notebook.to_markdown(path)
        assert page.count("<div data-told></div>") == page.count("<div data-told-end></div>")


def test_a_page_has_one_title():
    for path in (*LECTURES, SHORT):
        page = re.sub(
            r"^```.*?^```", "", notebook.to_markdown(path), flags=re.MULTILINE | re.DOTALL
        )
        assert len(re.findall(r"^# ", page, re.MULTILINE)) == 1, path.name
    assert "\n## 1 · Many requests" in notebook.to_markdown(SHORT)


def test_every_lecture_says_how_it_is_run():
    for path in (*LECTURES, SHORT):
        line = lecture.run_line(path)
        assert f"jupyter lab --notebook-dir=. notebooks/{path.name}</code>" in line
        assert f'href="{path.name}" download' in line
        assert ('id="runner"' in line) == notebook.runs_on_its_page(path)


def test_the_quiz_of_a_page_has_one_right_choice_and_a_reason_for_each():
    for path in LECTURES:
        form = lecture.quiz_of(notebook.number_of(path))
        assert form.count("<fieldset>") == form.count(" data-right ") == 5
        assert form.count('data-because="Right: ') == 5
        assert form.count("data-because=") == form.count('type="radio"') > 10
    assert lecture.quiz_of("90") == ""


def test_a_lecture_has_the_list_of_its_part_and_a_question_on_the_card_that_leads_to_it():
    uris = {notebook.number_of(path): f"{path.stem}.md" for path in LECTURES}
    part = lecture.part_of("06b", uris)
    assert part["title"] == "Scheduling"
    assert part["uris"] == [uris[number] for number in ("05", "06", "06b", "07")]
    assert lecture.part_of("00b", uris)["title"] == "First steps"
    asked = {path.stem: lecture.question_of(path) for path in LECTURES}
    assert all(text.endswith("?") and len(text) < 150 for text in asked.values() if text)
    assert sum(map(bool, asked.values())) >= len(LECTURES) - 3


def test_numbers_of_lectures_are_links_but_not_in_code():
    hrefs = {"05": "05.html", "06": "06.html", "06b": "06b.html", "A1": "A1.html"}

    def linked(html, own=""):
        return links.with_lectures(html, hrefs, own)

    a = '<a href="{0}.html">{0}</a>'.format
    assert linked("see notebook 05.") == f"see notebook {a('05')}."
    assert linked("notebooks 05, 06 and 06b") == f"notebooks {a('05')}, {a('06')} and {a('06b')}"
    assert linked("Chapters 05, A1 and lecture 06") == (
        f"Chapters {a('05')}, {a('A1')} and lecture {a('06')}"
    )
    cell = '<td data-label="{}">{}</td>'.format
    both = f"{a('05')}, {a('A1')}"
    assert linked(cell("notebook", "05, A1")) == cell("notebook", both)
    assert linked(cell("", "05, A1")) == cell("", both)
    assert linked(cell("minutes", "05")) == cell("minutes", "05")
    assert linked("notebooks 05 (a, b), A1 (c) and 06 (d) in 06 (e)") == (
        f"notebooks {a('05')} (a, b), {a('A1')} (c) and {a('06')} (d) in 06 (e)"
    )
    assert linked("at once. [05, 06]") == f"at once. [{a('05')}, {a('06')}]"
    for same in (
        "<code>notebook 05</code>", '<a href="x">notebook 05</a>', "<h1>notebook 05</h1>",
        "notebook 99", "05 of 06",
    ):  # fmt: skip
        assert linked(same) == same
    assert linked("notebook 05, notebook 06", own="05") == f"notebook 05, notebook {a('06')}"


def test_a_cell_of_a_table_knows_its_column():
    heads = "".join(f"<th>{name}</th>" for name in "abcd")
    cells = "<td>1</td><td>2</td><td>3</td><td></td>"
    html = links.with_labels(f"<table><tr>{heads}</tr><tr>\n{cells}</tr></table>")
    assert html.startswith('<div class="table many">')
    assert re.findall(r'data-label="(\w)"', html) == list("abcd")


def test_a_long_name_in_a_table_may_go_over_two_lines_but_not_before_its_ending():
    names = {
        "run_cluster.sh": "run_<wbr>cluster.sh",
        "v1/core/sched/scheduler.py": "v1/<wbr>core/<wbr>sched/<wbr>scheduler.py",
        "Scheduler.schedule": "Scheduler.<wbr>schedule",
        "model.shape": "model.<wbr>shape",
        "f(x=tokens)": "f(<wbr>x=<wbr>tokens)",
    }
    for name, parted in names.items():
        html = links.labelled(f"<td><code>{name}</code></td>", ["a"])
        assert f"<code>{parted}</code>" in html


def test_the_glossary_has_an_entry_with_an_address_for_each_term():
    found = glossary.terms()
    page = glossary.with_entries(glossary.PATH.read_text(encoding="utf-8"))
    assert len(found) > 100
    assert (
        len({term.anchor for term in found}) == len(found) == page.count('<section class="term">')
    )
    assert "| token |" not in page
    assert 'id="term-block-table">block table <span lang="zh">块表</span>' in page
    noted = glossary.with_notes("<strong>Block tables</strong> and <strong>block table</strong>")
    assert noted.count('class="word"') == 1
    assert "块表" in noted


def test_what_can_be_found_are_sections_with_their_weight():
    html = ('<h1 id="x">X<a class="headerlink" href="#x">¶</a></h1><p>One.</p><pre>no</pre>'
            '<h2 id="y">The &lt;y&gt;</h2><p>Two</p><div data-cell="1"></div>')  # fmt: skip
    one, two = search.sections_of(html, "05_x.html", "Page")
    assert one == {
        "url": "05_x.html#x", "title": "X", "page": "Page", "text": "One.", "weight": 1.5,
        "chinese": "",
    }  # fmt: skip
    assert (two["title"], two["text"]) == ("The <y>", "Two")
    (lesson,) = search.sections_of(
        f'<h1 id="x">X</h1>{lecture.run_line(LECTURES[0])}<p>One.</p>', "x.html", "Page"
    )
    assert lesson["text"] == "One."  # how it is run is not looked for
    terms = search.sections_of("", "guide/glossary.html", "Glossary")
    assert {"title": "preemption", "chinese": "抢占"}.items() <= next(
        it for it in terms if it["title"] == "preemption").items()  # fmt: skip
    assert search.weight_of("teach/05.html") < 1 < search.weight_of("course.html")


def test_the_toy_has_a_run_for_each_size_of_memory_and_all_answers_end():
    data = json.loads(toy.toy())
    assert len(toy.toy()) < 150_000
    assert len(data["runs"]) == 15
    answers = [len(it["answer"]) for it in data["asked"]]
    for number, run in enumerate(data["runs"], start=data["low"]):
        assert run[-1]["said"] == answers
        for step in run:
            assert len(step["pool"]) == number
            assert sum(done for done in step["done"] if isinstance(done, int)) <= data["budget"]
            waiting = [it["letter"] for it, done in zip(data["asked"], step["done"], strict=True)
                       if done == "-"]  # fmt: skip
            assert set(step["lost"]) <= set(waiting)
    assert sum(len(step["lost"]) for step in data["runs"][0]) > 2
    assert not any(step["lost"] for step in data["runs"][-1])
    assert len(data["runs"][0]) > 2 * len(data["runs"][-1])


def test_each_station_shows_its_lines_vllms_file_and_lectures():
    files = code.files_of_the_evening()
    assert list(code.OPEN) == [name for name, _, _ in files]
    for name, path, what in files:
        html = code.station(name, path, what)
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        first, last = code.place_of("\n".join(lines), code.OPEN[name])
        assert 5 <= last - first < 65, name
        assert f"lines {first} to {last}" in html
        assert re.search(rf'<span class="linenos">\s*{first}</span>', html)
        assert "vLLM 0.32" in html
    scheduler = code.station(*files[2])
    assert "<code>v1/core/sched/scheduler.py</code>" in scheduler
    assert '<a href="05_continuous_batching.html">05</a>' in scheduler
    assert '<a class="n" href="#scheduling-output">SchedulerOutput</a>' in scheduler


def test_values_beside_a_station_are_those_of_a_real_step():
    """They agree with each other, and with the budget that the page tells of."""
    found = values.values()
    assert set(found) == set(values.SHOWN) < set(code.OPEN)
    read = {file: {name: ast.literal_eval(text) for name, text in shown.items()}
            for file, shown in found.items()}  # fmt: skip
    scheduled = read["scheduling/scheduler.py"]["output.num_scheduled_tokens"]
    assert scheduled == read["scheduling/output.py"]["output.num_scheduled_tokens"]
    assert scheduled == {"A": 1, "B": 3, "C": 3}
    assert sum(scheduled.values()) + read["scheduling/scheduler.py"]["self.token_budget"] == 12
    assert read["scheduling/output.py"]["output.num_computed_tokens"] == {"A": 6, "B": 6, "C": 0}
    assert (
        read["kv/block_pool.py"]["[block.block_id for block in taken]"]
        == (read["kv/manager.py"]["new_ids"])
    )
    html = "".join(code.station(*file) for file in code.files_of_the_evening())
    assert html.count("<dt>In a real step</dt>") == len(found)
    assert "<code>self.token_budget</code> = <code>5</code>" in html


def test_each_notebook_has_a_card_and_a_box_of_the_map():
    text = cards.with_map(cards.with_cards((NOTEBOOKS / "README.md").read_text(encoding="utf-8")))
    files = {path.stem for path in LECTURES}
    boxes = set(re.findall(r'<a href="([^"]+)\.html">', text))
    assert boxes == files | {"guide/build_your_own"}
    assert set(re.findall(r'<a class="main" href="([^"]+)\.html">', text)) == files
    for number in (path.stem.split("_")[0] for path in LECTURES):
        assert f'href="teach/{number}.html"' in text
    assert text.count("runs in the page") == len(set(ON_THEIR_PAGE) - {SHORT})
    assert "../notebooks" not in text
    assert "| notebook |" not in text
    with pytest.raises(AssertionError, match="another form"):
        cards.cards("| notebook |\n|---|\n| a row |")


def test_the_badge_needs_an_address():
    assert colab.colab({}, "02_x.ipynb") == ""
    assert colab.colab({"Documentation": "https://example.org"}, "02_x.ipynb") == ""
    badge = colab.colab({"Source": "https://github.com/some/where.git"}, "02_x.ipynb")
    assert "colab.research.google.com/github/some/where/blob/main/notebooks/02_x.ipynb" in badge
    assert "git+https://github.com/some/where" in badge


def test_the_site_is_built_with_what_the_extra_names():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.findall(r'"([^"]+)"', re.search(r"^docs = \[(.*)\]", project, re.MULTILINE)[1])
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", name) for name in extra)  # pinned
    workflow = (ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8")
    assert f"pip install {' '.join(f'{chr(34)}{name}{chr(34)}' for name in extra)}" in workflow
    command = "mkdocs build --strict -f .github/mkdocs.yml"
    assert command in workflow
    assert command in (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
