"""The playground in a real browser, with Pyodide from npm: ``pytest -m browser``. Needs npm."""

import re
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe import serious
from static_site import serving_folder

from minivllm.course.playground.build import build
from minivllm.course.playground.presets import PRESETS
from minivllm.course.playground.server import PlaygroundServer

pytestmark = pytest.mark.browser
WIDTHS = (400, 1180, 1920)
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
    page.click(f"text={PRESETS[0]['title']}")
    wait_for_results(page)
    expect(page.locator("#error")).to_be_hidden()
    page.check("[name=which][value=A]")
    return page


def wait_for_results(page):
    expect(page.locator("#results")).not_to_have_attribute("aria-busy", "true", timeout=SECONDS)


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


def number(page, title, name="A"):
    card = page.locator("#numbers div", has_text=title)
    return card.locator("dd", has=page.locator(f".run-{name}")).inner_text().split()[1]


def write_policy(page, body):
    if page.input_value("[data-engine=A] [data-key=policy]") != "yours":
        page.select_option("[data-engine=A] [data-key=policy]", "yours")
        wait_for_results(page)
    page.fill("#policy textarea", HEAD + body)
    page.click("#policy button")


# -- first of all ----------------------------------------------------------------------------------


def test_python_is_there_in_time(page):
    assert page.seconds_to_start < 20
    assert page.locator("#chart svg").is_visible()


def test_a_change_redraws_in_time(play):
    """Thirty requests, two runs; the change of a control until the timeline is another one."""
    play.fill("[data-key=num_requests]", "30")
    play.press("[data-key=num_requests]", "Enter")
    expect(play.locator("#chart svg")).to_have_attribute("aria-label", re.compile("30 sequences"))
    play.evaluate(
        """() => new MutationObserver(() => { window.redrawn = performance.now(); })
        .observe(document.getElementById("chart"), { childList: true })"""
    )
    seconds = []
    for budget in (600, 700, 800):
        begun = play.evaluate(
            """budget => {
              const input = document.querySelector(
                "[data-engine=B] [data-key=max_num_batched_tokens]");
              input.value = budget;
              window.redrawn = 0;
              const begun = performance.now();
              input.dispatchEvent(new Event("change", { bubbles: true }));
              return begun;
            }""",
            budget,
        )
        play.wait_for_function("() => window.redrawn", timeout=SECONDS)
        seconds.append((play.evaluate("window.redrawn") - begun) / 1000)
    assert min(seconds) < 1


@pytest.mark.parametrize("width", WIDTHS)
def test_layout_and_accessibility(play, width):
    play.set_viewport_size({"width": width, "height": 900})
    found = []
    for step in ("play", "yours", "lab", "quiz", "exercises"):
        if step == "yours":
            play.click("text=A policy of yours")
            expect(play.locator("#policy textarea")).to_be_visible()
            wait_for_results(play)
        else:
            play.click(f"#tab-{step}")
            play.locator(f"#{step}-panel :is(svg, textarea, fieldset)").first.wait_for()
        for scheme in ("light", "dark"):
            play.emulate_media(color_scheme=scheme)
            play.wait_for_timeout(60)
            found += [f"{step}, {scheme}: {fault}" for fault in play.evaluate(FAULTS)]
            if width == WIDTHS[0]:  # the same elements at each width
                found += [f"{step}, {scheme}: {fault}" for fault in serious(play)]
    assert not found, "\n".join(found)


# -- playing ---------------------------------------------------------------------------------------


def test_two_runs_have_one_scale_and_the_slider_shows_a_step_of_either(play):
    assert float(number(play, "ITL, worst")) > 5 * float(number(play, "ITL, worst", "B"))
    play.press("#slider", "Home")
    assert play.text_content("#step").startswith("step 0 of 44")
    play.keyboard.press("ArrowRight")
    assert play.text_content("#step").startswith("step 1 of 44")
    play.check("[name=which][value=B]")
    assert play.text_content("#step").startswith("step 1 of 51")
    now = [float(play.get_attribute("#now", name)) for name in ("y", "height")]
    play.check("[name=which][value=A]")
    assert float(play.get_attribute("#now", "y")) + now[1] <= now[0]  # above the one of B
    play.click("#play")
    expect(play.locator("#step")).to_have_text(re.compile("step [2-9] of"), timeout=SECONDS)
    play.click("#play")


def test_a_click_on_the_timeline_shows_that_step(play):
    box = play.locator("#chart svg").bounding_box()
    play.locator("#chart svg").click(position={"x": box["width"] * 0.4, "y": box["height"] * 0.8})
    assert play.is_checked("[name=which][value=B]")
    step = int(play.text_content("#step").split()[1])
    assert 5 < step < 25
    assert play.locator("#tables > li").count() > 3


def test_a_policy_changes_the_run(play):
    play.click("text=A policy of yours")
    expect(play.locator("#policy textarea")).to_be_visible()
    expect(play.locator("#steps-part #step")).to_have_text(re.compile("of 149"), timeout=SECONDS)
    before = number(play, "TTFT, median", "B")
    code = play.input_value("#policy textarea")
    play.fill("#policy textarea", code.replace("request.sampling", "-request.sampling"))
    play.press("#policy textarea", "Control+Enter")
    expect(play.locator("#numbers div", has_text="TTFT, median")).not_to_contain_text(before)
    assert float(number(play, "TTFT, median", "B")) > 2 * float(before)


def test_the_link_holds_the_whole_setting(play, site):
    play.click("text=A policy of yours")
    play.fill("[data-engine=A] [data-key=max_num_seqs]", "3")
    play.fill("#policy textarea", play.input_value("#policy textarea") + "# grüße\n")
    play.uncheck("[data-engine=B] [data-key=enable_prefix_caching]")
    play.click("#copy-link")
    link, code = play.url, play.input_value("#policy textarea")
    play.goto("about:blank")
    play.goto(link)
    # its policy is not run before the reader says so
    expect(play.locator("#error")).to_contain_text("This link brings a policy")
    assert play.input_value("#policy textarea") == code
    assert play.input_value("[data-engine=A] [data-key=max_num_seqs]") == "3"
    assert not play.is_checked("[data-engine=B] [data-key=enable_prefix_caching]")
    assert play.locator("#chart svg").count() == 0
    play.click("#policy button")
    play.locator("#chart svg").wait_for(timeout=SECONDS)
    expect(play.locator("#error")).to_be_hidden()


# -- bad input: a sentence, and the page goes on ---------------------------------------------------


@pytest.mark.parametrize(
    ("fragment", "error"),
    [
        ("#num_requests=abc", "num_requests must be a whole number from 1 to 60, got 'abc'."),
        ("#A.num_blocks=99999", "num_blocks must be a whole number from 2 to 1,000, got 99999."),
        ("#A.policy=best", "policy must be fcfs or"),
        ("#A.enable_prefix_caching=maybe", "enable_prefix_caching must be true or false"),
        ("#speed=3&__proto__=1", "does not know: speed, __proto__"),
        ("#code=%25%25", "The code in this link is damaged"),
        ("#tab=nowhere&chapter=x", ""),
    ],
)
def test_a_broken_link(play, fragment, error):
    play.evaluate("fragment => { location.hash = fragment; }", fragment)
    expect(play.locator("#error")).to_contain_text(error)
    play.fill("[data-key=num_requests]", "5")
    play.click(f"text={PRESETS[2]['title']}")
    expect(play.locator("#lesson")).to_contain_text("one table")
    expect(play.locator("#error")).to_be_hidden()


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
    expect(said).to_contain_text(f"Line {line}: {error}" if line else error)
    expect(play.locator("#error")).to_contain_text(error)
    assert play.locator("#policy .mark").is_visible() == (line is not None)
    assert play.locator("#policy .bad").all_text_contents() == ([str(line)] if line else [])
    write_policy(play, "pass")
    expect(play.locator("#error")).to_be_hidden()
    expect(said).to_be_empty()


@pytest.mark.parametrize("way", ["button", "time limit"])
def test_a_policy_that_never_ends_is_stopped(play, way):
    write_policy(play, "def key(self, request):\n        while True: pass")
    play.locator("#stop").wait_for()
    if way == "button":
        play.click("#stop")
    else:
        play.clock.fast_forward(11_000)
    told = {"button": "Stopped.", "time limit": "Stopped after 10 seconds: it did not end."}[way]
    expect(play.locator("#error")).to_contain_text(told)
    write_policy(play, "def key(self, request): return request.arrival_index")
    expect(play.locator("#error")).to_be_hidden(timeout=SECONDS)
    assert play.locator("#python.ready").is_visible()


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
    server = PlaygroundServer(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    page = chromium.new_page(viewport={"width": 1180, "height": 900})
    page.goto(server.url)
    page.fill("[data-key=num_requests]", "5")
    page.press("[data-key=num_requests]", "Enter")
    label = re.compile("5 sequences")
    expect(page.locator("#chart svg")).to_have_attribute("aria-label", label, timeout=SECONDS)
    write_policy(page, "def key(self, request):\n        while True: pass")
    page.click("#stop")
    expect(page.locator("#error")).to_contain_text("Stopped.", timeout=SECONDS)
    write_policy(page, "def key(self, request): return 1 / 0")
    expect(page.locator("#policy .said")).to_have_text(
        "Line 3: ZeroDivisionError: division by zero", timeout=SECONDS
    )
    page.close()
    server.shutdown()
    server.server_close()
    thread.join()
