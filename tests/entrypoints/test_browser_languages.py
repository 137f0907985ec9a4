"""Pages in another language, in a real browser: ``pytest -m browser``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from axe import serious
from playground_server import serving_playground
from pseudo_language import OUTSIDE, pseudo_package

pytestmark = pytest.mark.browser
SECONDS = 30_000  # milliseconds
FAULTS = (Path(__file__).parents[1] / "page_layout.js").read_text(encoding="utf-8")
# What stays as it is: names of ours and of vLLM's, and what a reader gives to an exercise.
NAMES = ["minivllm", "max_num_seqs", "fcfs", "priority", "prefill first", "static", "null"]


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


@pytest.fixture(scope="module")
def pseudo(tmp_path_factory):
    """Variables of a process that has the language "xx", whose texts are in brackets."""
    return pseudo_package(tmp_path_factory.mktemp("pseudo"))


def assert_all_in_brackets(page, *names):
    """Each text that the page shows is one of the catalogue's, and what it is made of, too."""
    assert page.evaluate("document.documentElement.lang") == "xx"
    assert page.evaluate(OUTSIDE, [*NAMES, *names]) == []


@pytest.fixture
def bracketed(chromium, pseudo, tmp_path):
    """The playground in that language."""
    command = [sys.executable, "-m", "minivllm", "playground", "--no-browser", "--port", "0"]
    server = subprocess.Popen([*command, "--lang", "xx"], env=pseudo, cwd=tmp_path, text=True,
                              stdout=subprocess.PIPE)  # fmt: skip
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto(re.search(r"http:\S+", server.stdout.readline())[0])
    yield page
    page.close()
    server.kill()
    server.communicate()


def test_the_playground_says_nothing_that_is_not_in_the_catalogue(bracketed):
    page = bracketed
    expect(page.locator("#step")).to_have_text("⟦step 7 of 0–44⟧", timeout=SECONDS)
    page.evaluate("document.getElementById('settings-part').open = true")
    labs = [name.split(": ")[1] for name in page.locator("#lab-name option").all_text_contents()]
    for tab in ("#dock-pool", "#dock-tables", "#dock-numbers", "#dock-policy"):
        page.click(tab)
        assert_all_in_brackets(page, *labs)
    page.hover("#chart", position={"x": 300, "y": 60})
    expect(page.locator(".tip")).to_be_visible()
    page.select_option("#presets", "thrashing")
    expect(page.locator("#step")).to_have_text(re.compile("⟦step 10 of"), timeout=SECONDS)
    assert_all_in_brackets(page, *labs)


def test_what_is_wrong_is_said_in_the_language(bracketed):
    page = bracketed
    page.evaluate("document.getElementById('settings-part').open = true")
    set_number(page, "num_requests", "0")
    said = "⟦⟦requests⟧ must be ⟦a whole number from 1 to 60⟧, got 0.⟧"
    expect(page.locator("#rail .wrong")).to_have_text(said, timeout=SECONDS)
    set_number(page, "num_requests", "9")
    page.select_option("#settings [data-engine='2'] [data-key=policy]", "yours")
    page.fill("#policy textarea", "class P: pass")
    expect(page.locator("#policy .said")).to_have_text(re.compile("^⟦define"), timeout=SECONDS)
    address = page.url.split("#")[0]
    page.goto("about:blank")  # or the page may write its own link over this one
    page.goto(f"{address}#preset=swap&1.unknown=1")
    expect(page.locator("#error")).to_have_text(re.compile("^⟦This link"), timeout=SECONDS)
    page.evaluate("document.getElementById('settings-part').open = true")
    set_number(page, "max_output", "9000")
    expect(page.locator("#rail .wrong")).to_contain_text("⟦longest output⟧", timeout=SECONDS)


def set_number(page, key, value):
    page.fill(f"#settings [data-key={key}]", value)
    page.press(f"#settings [data-key={key}]", "Enter")


def test_labs_quiz_and_exercises_are_asked_and_graded_in_the_language(bracketed):
    page = bracketed
    page.click("#tab-lab")
    page.click("#lab-peek")
    expect(page.locator("#lab-help summary")).to_have_text("⟦hint⟧", timeout=SECONDS)
    page.click("#lab-editor button")
    expect(page.locator("#lab-editor .said")).to_have_text("⟦not solved yet⟧", timeout=SECONDS)
    page.click("#tab-quiz")
    page.locator("#questions input").first.check()
    page.click("#tab-exercises")
    expect(page.locator("#exercise-text")).to_contain_text("⟦", timeout=SECONDS)
    page.fill("#exercise-editor textarea", "{'A': 1}")
    page.click("#exercise-editor button")
    expect(page.locator("#exercise-editor .said.wrong")).to_contain_text("⟦", timeout=SECONDS)
    labs = [name.split(": ")[1] for name in page.locator("#lab-name option").all_text_contents()]
    kinds = page.locator("#exercise-name option").all_text_contents()
    assert_all_in_brackets(page, *labs, *kinds, "max_num_batched_tokens", "running", "waiting")


@pytest.fixture(scope="module")
def local():
    """A playground that is served from here, in the languages that there are."""
    with serving_playground() as server:
        yield server


def test_the_switch_keeps_what_the_reader_has_set(chromium, local):
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto(local.url)
    assert page.evaluate("document.documentElement.lang") == "en"
    page.select_option("#presets", "own-policy")
    expect(page.locator("#step")).to_have_text("step 30 of 0–154", timeout=SECONDS)
    page.fill("#policy textarea", page.input_value("#policy textarea") + "# mine\n")
    page.check("#axis [value=seconds]")
    page.press("#slider", "End")
    expect(page.locator("#step")).to_have_text("step 154 of 0–154")
    page.click("#tab-lab")
    page.select_option("#lab-name", "cap")
    page.fill("#lab-editor textarea", "x = 5")
    page.click("#tab-exercises")
    page.select_option("#exercise-name", "ch05.batching")
    page.fill("#exercise-seed", "3")
    page.press("#exercise-seed", "Enter")
    asked = page.locator("#exercise-text")
    expect(asked).to_contain_text("seed=4", timeout=SECONDS)
    page.fill("#exercise-editor textarea", "(1, 2)")
    page.wait_for_timeout(1000)  # the address follows
    for language, said in (
        ("中文", re.compile("[一-龥]{4}")),
        ("English", re.compile("Difficulty")),
    ):
        page.click(f".language >> text={language}")
        expect(page.locator("#exercises-panel")).to_be_visible(timeout=SECONDS)
        assert page.evaluate("document.documentElement.lang") == {"中文": "zh-CN"}.get(
            language, "en"
        )
        expect(asked).to_contain_text(said, timeout=SECONDS)
        expect(asked).to_contain_text("seed=4", timeout=SECONDS)
        assert page.input_value("#exercise-name") == "ch05.batching"
        assert page.input_value("#exercise-editor textarea") == "(1, 2)"
        assert page.input_value("#policy textarea").endswith("# mine\n")
        assert page.is_checked("#axis [value=seconds]")
        assert page.input_value("#presets") == "own-policy"
        expect(page.locator("#step")).to_have_text(re.compile("154.*154"), timeout=SECONDS)
        page.click("#tab-lab")
        page.select_option("#lab-name", "cap")
        expect(page.locator("#lab-editor textarea")).to_have_value("x = 5")
        page.click("#tab-exercises")
    page.click("#tab-quiz")
    page.check("[name=question-0][value=b]")
    told = page.locator("#questions .said").first
    expect(told).to_have_text(re.compile("right|not yet"))
    page.click(".language")
    expect(told).to_have_text(re.compile("正确|还不对"), timeout=SECONDS)
    assert page.is_checked("[name=question-0][value=b]")
    page.close()


@pytest.mark.parametrize("width", [400, 1180, 1440])
def test_the_chinese_playground_is_laid_out_and_accessible(chromium, local, width):
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.goto(local.address("zh"))
    expect(page.locator("#step")).to_have_text("第 7 步（0–44）", timeout=SECONDS)
    for tab in (
        "#dock-pool",
        "#dock-tables",
        "#dock-numbers",
        "#tab-lab",
        "#tab-quiz",
        "#tab-play",
    ):
        page.click(tab)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert not serious(page)
    page.close()


# -- reports, the stepper, and the glass -------------------------------------------------------

REPORTS = """
import sys
from pathlib import Path
from minivllm.lab.sim import dry_run
from minivllm.lab.viz import save_html, stepper
from minivllm.xray.command import write_pages
from minivllm.xray.reports import report
from minivllm.xray.shipped import shipped_run

folder = Path(sys.argv[1])
trace = dry_run([(9, 6), (6, 5), (5, 10)], num_blocks=9, block_size=4)
save_html(trace, folder / "run.html")
write_pages(report(shipped_run()), folder)
walk = stepper(trace)
said = [walk.slider.description, walk.back.tooltip, walk.forward.tooltip]
for step in range(trace.num_steps):
    walk.slider.value = step
    said += [walk.words.value, walk.picture.value]
(folder / "stepper.html").write_text('<html lang="xx">' + "".join(said))
"""


@pytest.fixture(scope="module")
def reports(pseudo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    command = [sys.executable, "-c", REPORTS, str(folder)]
    subprocess.run(command, env={**pseudo, "MINIVLLM_LANG": "xx"}, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("name", ["run", "xray"])
def test_a_report_says_nothing_that_is_not_in_the_catalogue(chromium, reports, name):
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto((reports / f"{name}.html").as_uri())
    expect(page.locator("#step")).to_have_text(re.compile("⟦step 0 of"))
    assert page.title().startswith("⟦")
    for step in (4, 60, 200):
        page.evaluate(f"location.hash = 'step={step}'")
        page.hover("#chart", position={"x": 300, "y": 60})
        for tab in page.get_by_role("tab").all():
            tab.click()
            assert_all_in_brackets(page)
    page.close()


def test_the_stepper_says_nothing_that_is_not_in_the_catalogue(chromium, reports):
    page = chromium.new_page()
    page.goto((reports / "stepper.html").as_uri())
    assert page.text_content("body").count("⟦") > 30
    assert_all_in_brackets(page, "length")
    page.close()


GLASS = """
import sys
from minivllm.entrypoints.openai.background import BackgroundServer

sizes = ["--num-gpu-blocks-override", "61", "--block-size", "16", "--max-model-len", "512"]
with BackgroundServer("--glass", "--served-model-name", "minivllm", *sizes) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def glass(pseudo, tmp_path):
    """The page behind glass in that language, of a small server."""
    variables = {**pseudo, "MINIVLLM_LANG": "xx"}
    server = subprocess.Popen([sys.executable, "-c", GLASS], env=variables, cwd=tmp_path, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    address = next(line for line in server.stdout if line.startswith("http"))
    yield f"{address.strip()}/glass"
    server.communicate("")


def test_the_glass_says_nothing_that_is_not_in_the_catalogue(chromium, glass):
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto(glass)
    expect(page.locator("#numbers dt").first).to_have_text("⟦steps⟧", timeout=SECONDS)
    page.fill("#most", "1")
    page.fill("#text", "Tell me a story about a king.")
    page.press("#text", "Enter")
    expect(page.locator("#talk small")).to_have_text("⟦Cut after ⟦1 token⟧.⟧", timeout=SECONDS)
    page.click("#pause")
    expect(page.locator("#state")).to_have_text("⟦paused⟧", timeout=SECONDS)
    page.click("#fill")
    page.click("#one-step")
    expect(page.locator("#words")).to_contain_text("⟦", timeout=SECONDS)
    page.locator("#talk summary").first.click()
    page.wait_for_timeout(500)  # the step's picture may still be on its way, with answers
    page.evaluate(
        "document.querySelectorAll('#talk .prompt, #talk .prompt ~ p').forEach(p => p.remove())"
    )
    answers = page.locator("#talk > p span:last-child").all_text_contents()
    asked = "Tell me a story about a king."
    assert_all_in_brackets(page, asked, *filter(None, answers))
    page.click("#resume")
    page.close()
