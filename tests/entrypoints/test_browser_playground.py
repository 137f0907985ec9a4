"""The playground in a real browser, with Pyodide from npm: ``pytest -m browser``. Needs npm."""

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe import serious
from playground_server import serving_playground
from static_site import serving_folder

from minivllm.course.playground.build import build
from minivllm.course.playground.presets import PRESETS

pytestmark = pytest.mark.browser
WIDTHS = (400, 800, 1180, 1440, 1920)
FAULTS = (Path(__file__).parents[1] / "page_layout.js").read_text()
SECONDS = 30_000  # milliseconds
HEAD = "from minivllm.scheduling.policies import SchedulingPolicy\nclass P(SchedulingPolicy):\n    "


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(folder / "playground")
    with serving_folder(folder) as url:
        yield url + "playground/index.html"


@pytest.fixture(scope="module")
def page(chromium, site):
    """The page, once Python is ready. It has asked this server alone, and said nothing."""
    noise, requests = [], []
    page = chromium.new_page(viewport={"width": 1180, "height": 900})
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.clock.install()  # it runs as ever, but can be put forward
    begin = time.monotonic()
    page.goto(site)
    page.locator("#python.ready").wait_for(timeout=SECONDS)
    page.seconds_to_start = time.monotonic() - begin
    yield page
    page.close()
    assert not noise
    here = urlsplit(site).netloc
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {here}


@pytest.fixture
def play(page):
    """The page with the first preset, shown by this link's settings."""
    page.set_viewport_size({"width": 1180, "height": 900})
    page.emulate_media(color_scheme="light")
    page.click("#tab-play")
    choose(page, "own-policy")  # so that the first one is a change
    page.evaluate("localStorage.removeItem('minivllm-policy')")
    choose(page, "decode-stall")
    expect(page.locator("#error")).to_be_hidden()
    page.click("#dock-step")
    expect(page.locator("#step")).to_have_text("step 7 of 0–44", timeout=SECONDS)
    return page


def choose(page, preset):
    page.select_option("#presets", preset)
    wait_for_results(page)


def all_settings(page):
    page.evaluate("document.getElementById('settings-part').open = true")


def wait_for_results(page):
    expect(page.locator("#centre")).not_to_have_attribute("aria-busy", "true", timeout=SECONDS)


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


def number(page, title, name="1"):
    card = page.locator("#numbers div", has_text=title)
    return card.locator("dd", has=page.locator(f".run-{name}")).text_content().split()[1]


def write_policy(page, body):
    setting = '#settings [data-engine="1"] [data-key=policy]'
    if page.input_value(setting) != "yours":
        all_settings(page)
        page.select_option(setting, "yours")
        wait_for_results(page)
    page.fill("#policy textarea", HEAD + body)
    page.click("#policy button")


# -- first of all ----------------------------------------------------------------------------------


def test_python_is_there_in_time(page):
    assert page.seconds_to_start < 20
    assert page.locator("#chart svg.rows").is_visible()


def test_a_slider_redraws_while_it_is_dragged(play):
    """Thirty requests: each move of the slider draws another timeline, without a click."""
    all_settings(play)
    play.fill("#settings [data-key=num_requests]", "30")
    play.press("#settings [data-key=num_requests]", "Enter")
    chart = play.locator("#chart svg.rows")
    expect(chart).to_have_attribute("aria-label", re.compile("30 requests"), timeout=SECONDS)
    slider = play.locator('#sliders [data-engine="2"] [data-key=max_num_batched_tokens]')
    seen = {chart.get_attribute("aria-label")}
    for budget in (200, 300, 400):
        slider.evaluate(
            """(slider, budget) => {
              slider.value = budget;
              slider.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            budget,
        )
        label = re.compile(f"token budget {budget}, .*30 requests")
        expect(chart).to_have_attribute("aria-label", label, timeout=SECONDS)
        seen.add(chart.get_attribute("aria-label"))
    assert len(seen) == 4
    assert (
        int(play.input_value('#settings [data-engine="2"] [data-key=max_num_batched_tokens]'))
        == 400
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_layout_and_accessibility(play, width):
    play.set_viewport_size({"width": width, "height": 900})
    found = []
    for step in ("play", "yours", "lab", "quiz", "exercises"):
        if step == "yours":
            choose(play, "own-policy")
        else:
            play.click(f"#tab-{step}")
            kinds = f"#{step}-panel :is(svg, textarea, fieldset)"
            play.locator(f"{kinds} >> visible=true").first.wait_for()
        for scheme in ("light", "dark"):
            play.emulate_media(color_scheme=scheme)
            play.wait_for_timeout(60)
            found += [f"{step}, {scheme}: {fault}" for fault in play.evaluate(FAULTS)]
            if width in (WIDTHS[0], WIDTHS[-1]):  # at the others the elements are the same
                found += [f"{step}, {scheme}: {fault}" for fault in serious(play)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("preset", [each["name"] for each in PRESETS])
def test_the_timeline_is_drawn_for_its_width(play, preset, width):
    play.set_viewport_size({"width": width, "height": 900})
    choose(play, preset)
    assert play.evaluate("$('chart').scrollWidth <= $('chart').clientWidth")
    smallest = play.evaluate(
        """() => Math.min(...[...document.querySelectorAll("#chart text")].map(text =>
          parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))"""
    )
    assert smallest >= 11
    left = "document.querySelector('#chart .letter').getBoundingClientRect().right"
    at = play.evaluate(left)
    play.locator("#chart").focus()
    for _ in range(4):
        play.keyboard.press("w")
    assert play.evaluate(left) == pytest.approx(at)  # names stay where they are
    play.keyboard.press("d")
    for _ in range(6):
        play.keyboard.press("s")
    assert play.locator("#chart .letter").count() > 4


@pytest.mark.parametrize("width", WIDTHS)
def test_the_dock_is_always_in_view(play, width):
    play.set_viewport_size({"width": width, "height": 900})
    for pane in ("pool", "tables", "numbers", "step"):
        play.click(f"#dock-{pane}")
        box = play.locator(f"#{pane}-pane").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 900
        chart = play.locator("#chart").bounding_box()
        assert chart["y"] + 150 < box["y"]  # the timeline is seen beside it


def test_a_disabled_control_looks_otherwise(play):
    all_settings(play)
    play.uncheck("#with-2")
    off = '#settings [data-engine="2"] [data-key=num_blocks]'
    look = "(input) => getComputedStyle(input).opacity"
    assert play.locator(off).evaluate(look) != play.locator(off.replace("2", "1", 1)).evaluate(look)
    expect(play.locator("#sliders")).to_contain_text("There is one engine")


# -- playing ---------------------------------------------------------------------------------------


def test_the_two_numbers_of_the_lesson_are_on_top(play):
    said = [" ".join(dd.split()) for dd in play.locator("#focus dd").all_inner_texts()]
    assert said == ["254 → 30.2 ms", "220 → 232 ms"]
    choose(play, "thrashing")
    expect(play.locator("#focus dd").first).to_have_text(re.compile("^13 → 0"), timeout=SECONDS)


def test_each_preset_opens_at_its_own_step(play):
    for preset in PRESETS:
        choose(play, preset["name"])
        opens = preset["opens"]
        step = re.compile(f"^step {opens['step']} of")
        expect(play.locator("#step")).to_have_text(step, timeout=SECONDS)
        assert play.is_checked(f'[name=which][value="{opens["engine"]}"]')


def test_two_runs_have_one_scale_and_the_slider_shows_a_step_of_either(play):
    assert float(number(play, "ITL, worst")) > 5 * float(number(play, "ITL, worst", "2"))
    play.press("#slider", "Home")
    assert play.text_content("#step").startswith("step 0 of 0–44")
    play.keyboard.press("ArrowRight")
    assert play.text_content("#step").startswith("step 1 of 0–44")
    play.check('[name=which][value="2"]')
    assert play.text_content("#step").startswith("step 1 of 0–51")
    now = [float(play.get_attribute("#now", name)) for name in ("y", "height")]
    play.check('[name=which][value="1"]')
    assert float(play.get_attribute("#now", "y")) + now[1] <= now[0]  # above the one of 2
    play.click("#play")
    expect(play.locator("#step")).to_have_text(re.compile("step [2-9] of"), timeout=SECONDS)
    play.click("#play")


def test_a_click_on_the_timeline_shows_that_step(play):
    box = play.locator("#chart").bounding_box()
    play.locator("#chart").click(position={"x": box["width"] * 0.4, "y": box["height"] * 0.8})
    assert play.is_checked('[name=which][value="2"]')
    step = int(play.text_content("#step").split()[1])
    assert 5 < step < 25
    play.click("#dock-tables")
    assert play.locator("#tables > li").count() > 3


def test_hover_tells_step_tokens_and_blocks(play):
    row = play.locator("#chart .letter", has_text="E").first.bounding_box()
    play.mouse.move(row["x"] + 300, row["y"] + 5)
    said = play.locator("#chart .tip").inner_text()
    assert re.match(
        r"step 7 · 220 ms\ntokens: 4000 of 8192\nblocks: \d+ of 99\nE 4: prefill of 4000", said
    )


def test_wheel_and_keys_zoom(play):
    cells = "(a => a ? a.getBoundingClientRect().width : 0)(document.querySelector('#now'))"
    wide = play.evaluate(cells)
    box = play.locator("#chart").bounding_box()
    play.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60)
    play.keyboard.down("Control")
    play.mouse.wheel(0, -200)
    play.keyboard.up("Control")
    assert play.evaluate(cells) > 1.3 * wide
    for _ in range(5):
        play.keyboard.press("s")
    assert play.evaluate(cells) == pytest.approx(wide, rel=0.01)


def test_the_rail_folds(play):
    wide = play.locator("#chart").bounding_box()["width"]
    play.click("#fold")
    expect(play.locator("#lesson")).to_be_hidden()
    assert play.locator("#chart").bounding_box()["width"] > wide + 150
    play.click("#fold")
    expect(play.locator("#lesson")).to_be_visible()


def test_a_policy_is_run_soon_after_the_last_key(play):
    choose(play, "own-policy")
    expect(play.locator("#step")).to_have_text(re.compile("of 0–154"), timeout=SECONDS)
    before = number(play, "TTFT, median", "2")
    code = play.input_value("#policy textarea")
    play.fill("#policy textarea", code.replace("request.sampling", "-request.sampling"))
    play.clock.run_for(600)
    expect(play.locator("#focus dd").first).not_to_contain_text(before, timeout=SECONDS)
    assert float(number(play, "TTFT, median", "2")) > 2 * float(before)


def test_what_a_policy_prints_has_a_height(play):
    write_policy(play, "def key(self, request):\n        print('here')\n        return 0")
    said = play.locator("#policy .said")
    expect(said).to_contain_text("here\nhere", timeout=SECONDS)
    size = said.evaluate("said => parseFloat(getComputedStyle(said).fontSize)")
    assert said.bounding_box()["height"] <= 12.5 * size


def test_a_short_link_holds_the_whole_setting(play):
    slider = '#sliders [data-engine="2"] [data-key=max_num_batched_tokens]'
    play.locator(slider).fill("700")
    play.click("#copy-link")
    assert len(play.url) < 200
    choose(play, "own-policy")
    all_settings(play)
    play.fill('#settings [data-engine="1"] [data-key=max_num_seqs]', "3")
    play.fill("#policy textarea", play.input_value("#policy textarea") + "# grüße\n")
    play.uncheck('#settings [data-engine="2"] [data-key=enable_prefix_caching]')
    play.click("#copy-link")
    expect(play.locator("#copied")).not_to_be_empty()
    link, code = play.url, play.input_value("#policy textarea")
    play.evaluate("localStorage.clear()")
    play.goto("about:blank")
    play.goto(link)
    # its policy is not run before the reader says so
    expect(play.locator("#error")).to_contain_text("This link contains a policy")
    assert play.input_value("#policy textarea") == code
    assert play.input_value('#settings [data-engine="1"] [data-key=max_num_seqs]') == "3"
    assert not play.is_checked('#settings [data-engine="2"] [data-key=enable_prefix_caching]')
    assert play.locator("#chart svg").count() == 0
    play.locator("#python.ready").wait_for(timeout=2 * SECONDS)
    play.click("#policy button")
    play.locator("#chart svg").first.wait_for(timeout=SECONDS)
    expect(play.locator("#error")).to_be_hidden()


def test_a_reload_loses_nothing(play):
    choose(play, "own-policy")
    mine = play.input_value("#policy textarea") + "# mine\n"
    expect(play.locator("#step")).to_have_text(re.compile(r"of 0–1[45]\d"), timeout=SECONDS)
    play.press("#slider", "Home")
    play.fill("#policy textarea", mine)  # not run
    play.click("#tab-lab")
    play.fill("#lab-editor textarea", "x = 5")
    play.click("#tab-quiz")
    play.select_option("#quiz-chapter", "06")
    expect(play.locator("#questions fieldset")).to_have_count(5)
    play.reload()
    expect(play.locator("#quiz-panel")).to_be_visible()
    expect(play.locator("#quiz-chapter")).to_have_value("06", timeout=SECONDS)
    expect(play.locator("#policy textarea")).to_have_value(mine, timeout=SECONDS)
    expect(play.locator("#presets")).to_have_value("own-policy", timeout=SECONDS)
    expect(play.locator("#step")).to_have_text(re.compile("^step 0 of"), timeout=SECONDS)
    play.click("#tab-lab")
    expect(play.locator("#lab-editor textarea")).to_have_value("x = 5")
    play.evaluate("localStorage.clear()")
    play.reload()
    play.locator("#python.ready").wait_for(timeout=SECONDS)


# -- bad input: a sentence, and the page goes on ---------------------------------------------------


@pytest.mark.parametrize(
    ("fragment", "error"),
    [
        ("#num_requests=abc", "requests must be a whole number from 1 to 60, got 'abc'."),
        ("#1.num_blocks=99999", "blocks must be a whole number from 2 to 1,000, got 99999."),
        ("#1.policy=best", "policy must be fcfs or"),
        ("#2.enable_prefix_caching=maybe", "prefix caching must be true or false"),
        ("#min_prompt=200", "shortest prompt must be at most longest prompt=80, got 200."),
        ("#speed=3&__proto__=1", "does not know: speed, __proto__"),
        ("#code=%25%25", "The code in this link is damaged"),
        ("#tab=nowhere&chapter=x", ""),
    ],
)
def test_a_broken_link(play, fragment, error):
    play.evaluate("fragment => { location.hash = fragment; }", fragment)
    at_field = " must " in error
    said = play.locator("#what-is-wrong" if at_field else "#error")
    expect(said).to_contain_text(error, timeout=SECONDS)
    assert play.locator("#rail [aria-invalid=true]").count() >= at_field
    assert play.locator("#error").is_visible() == (not at_field and error != "")  # said once
    choose(play, "shared-table")
    expect(play.locator("#lesson")).to_contain_text("one table")
    expect(play.locator("#error")).to_be_hidden()
    expect(play.locator("#what-is-wrong")).to_have_count(0)


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        ("def key(self, request):\n        return 1 / 0", "ZeroDivisionError: division by zero", 4),
        ("def key(self, request)", "SyntaxError: expected ':'", 3),
        ("def may_admit(self, running): return False", "admits no request", None),
    ],
)
def test_a_policy_that_fails_is_said_at_its_line(play, body, error, line):
    write_policy(play, body)
    said = play.locator("#policy .said")
    expect(said).to_contain_text(f"Line {line}: {error}" if line else error, timeout=SECONDS)
    expect(play.locator("#error")).to_be_hidden()  # it is said once
    assert play.locator("#policy .mark").is_visible() == (line is not None)
    assert play.locator("#policy .bad").all_text_contents() == ([str(line)] if line else [])
    write_policy(play, "pass")
    expect(play.locator("#error")).to_be_hidden()
    expect(said).to_be_empty()


@pytest.mark.parametrize("way", ["button", "time limit"])
def test_a_policy_that_never_ends_is_stopped(play, way):
    write_policy(play, "def key(self, request):\n        while True: pass")
    play.locator("#stop").wait_for()
    expect(play.locator("#policy .said")).to_be_empty()  # no old error, while it runs
    if way == "button":
        play.click("#stop")
    else:
        play.clock.fast_forward(11_000)
    told = {"button": "Stopped.", "time limit": "Stopped after 10 seconds: it did not end."}[way]
    expect(play.locator("#error")).to_contain_text(told)
    write_policy(play, "def key(self, request): return request.arrival_index")
    expect(play.locator("#error")).to_be_hidden(timeout=SECONDS)
    play.locator("#python.ready").wait_for(timeout=SECONDS)


# -- learning --------------------------------------------------------------------------------------


def test_what_is_asked_does_not_wait_for_python(chromium, site):
    page = chromium.new_page()
    page.route("**/pyodide/**", lambda route: route.abort())
    page.goto(f"{site}#tab=quiz&chapter=06")
    questions = page.locator("#questions fieldset")
    expect(questions).to_have_count(5)
    questions.first.locator("input").first.check()
    expect(questions.first.locator(".said")).to_have_text(re.compile("^(right|not yet): "))
    page.click("#tab-lab")
    expect(page.locator("#lab-editor textarea")).to_have_value(re.compile("def my_"))
    page.click("#tab-exercises")
    expect(page.locator("#exercise-text")).not_to_be_empty()
    page.close()


def test_the_lab_the_quiz_and_an_exercise(play):
    play.click("#tab-lab")
    expect(play.locator("#lab-editor textarea")).to_have_value(re.compile("def my_schedule"))
    play.click("#lab-editor button")
    expect(play.locator("#lab-editor .said")).to_have_text("not solved yet", timeout=SECONDS)
    for looks, title in enumerate(("hint", "idea", "solution"), 1):
        play.click("#lab-peek")
        expect(play.locator("#lab-help summary")).to_have_count(looks)
        expect(play.locator("#lab-help summary").last).to_have_text(title)
    solution = play.locator("#lab-help pre").last.text_content()
    play.fill("#lab-editor textarea", solution.replace("def schedule", "def my_schedule"))
    play.click("#lab-editor button")
    told = play.locator("#lab-editor .said.right")
    expect(told).to_contain_text("vLLM's own plan in 1482 recorded steps", timeout=SECONDS)
    expect(play.locator("#lab-status")).to_contain_text(re.compile(r"schedule +passed 2\S+ +3\n"))
    play.click("#lab-next")
    expect(play.locator("#lab-editor textarea")).to_have_value(re.compile("def my_cap"))
    with play.expect_download() as saved:
        play.click("#lab-save")
    file = saved.value.path().read_text(encoding="utf-8")
    assert '"schedule": 3' in file
    broken = {"name": "a.json", "mimeType": "application/json", "buffer": b"my notes"}
    play.set_input_files("#lab-open", broken)
    expect(play.locator("#lab-status")).to_contain_text("the file is no progress file")
    play.set_input_files("#lab-open", {**broken, "buffer": b'{"peeks": {"cap": 1}}'})
    expect(play.locator("#lab-status")).to_contain_text(re.compile(r"cap +- +1\n"))

    play.press("#tab-lab", "ArrowRight")
    play.locator("#questions input").first.wait_for()
    for letter in "abc":
        play.check(f"[name=question-0][value={letter}]")
        expect(play.locator("#questions .said").first).to_have_text(re.compile("right|not yet"))

    play.press("#tab-quiz", "ArrowRight")
    play.select_option("#exercise-name", "ch05.batching")
    expect(play.locator("#exercise-text")).to_contain_text("static")
    for answer, said in (("(1, 2)", "not yet"), ("(28, 18)", "right: 10 of 28"), ("1/0", "Line 1")):
        play.fill("#exercise-editor textarea", answer)
        play.press("#exercise-editor textarea", "Control+Enter")
        expect(play.locator("#exercise-editor .said")).to_contain_text(said)


# -- on this machine: no worker, no npm ------------------------------------------------------------


def test_the_local_python_takes_the_workers_place(chromium):
    with serving_playground() as server:
        page = chromium.new_page(viewport={"width": 1180, "height": 900})
        page.goto(server.url)
        all_settings(page)
        page.fill("#settings [data-key=num_requests]", "5")
        page.press("#settings [data-key=num_requests]", "Enter")
        label = re.compile("5 requests")
        expect(page.locator("#chart svg.rows")).to_have_attribute(
            "aria-label", label, timeout=SECONDS
        )
        write_policy(page, "def key(self, request):\n        while True: pass")
        page.click("#stop")
        expect(page.locator("#error")).to_contain_text("Stopped.", timeout=SECONDS)
        write_policy(page, "def key(self, request): return 1 / 0")
        expect(page.locator("#policy .said")).to_have_text(
            "Line 3: ZeroDivisionError: division by zero", timeout=SECONDS
        )
        page.close()
