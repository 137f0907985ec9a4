"""The glass server's page in a real browser: ``pytest -m browser``; see ``test_browser.py``."""

import asyncio
import gzip
import re
import threading
from pathlib import Path

import pytest
import uvicorn
from http_server import serving

from minivllm.entrypoints.openai.background import BackgroundServer
from minivllm.lab.viz.draw.wording import block_list
from minivllm.xray.file_run import AttachedRun, make_app

pytestmark = pytest.mark.browser
SECONDS = 20_000  # milliseconds
WAITS = Path(__file__).parents[2] / "minivllm/xray/runs/waits.jsonl.gz"
QUESTION = "Tell me who you are."


def expect(found):
    """Playwright's; imported when a test runs, since without a browser they are only left out."""
    from playwright.sync_api import expect

    return expect(found)


@pytest.fixture(scope="module")
def server():
    with serving("--glass", "--num-gpu-blocks-override", "61", "--block-size", "16") as running:
        yield running


@pytest.fixture
def open_page(chromium, server):
    """Open /glass in a new session. In the end it must have been quiet and alone."""
    contexts, noise, requests = [], [], []

    def open_page(url=server.url, **options):
        contexts.append(chromium.new_context(**options))
        view = contexts[-1].new_page()
        view.on("console", lambda message: noise.append(message.text))
        view.on("pageerror", lambda error: noise.append(str(error)))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(f"{url}/glass")
        expect(view.locator("#numbers dd").first).to_be_visible(timeout=SECONDS)
        return view

    open_page.noise = noise
    yield open_page
    for context in contexts:
        context.close()
    assert not noise
    assert {re.match(r"(data:|http://127\.0\.0\.1:\d+)", url)[0] for url in requests} <= {
        "data:", server.url
    }  # fmt: skip
    assert server.idle()


def ask(view, text=QUESTION, **options):
    for name, value in options.items():
        view.fill(f"#{name}", str(value))
    view.fill("#text", text)
    view.press("#text", "Enter")


def expect_number(view, name, value):
    number = view.locator("#numbers div", has_text=name).locator("dd")
    expect(number).to_have_text(str(value), timeout=SECONDS)


def expect_queue(view, name, letters):
    row = view.locator("#queue dt", has_text=name).locator("xpath=following-sibling::dd[1]")
    expect(row.locator(".badge")).to_have_text(letters.split(), timeout=SECONDS)


def held(view):
    """Numbers of the blocks that are drawn as held, by the letters of their holders."""
    blocks = view.eval_on_selector_all(
        "#pool .block.held", "all => all.map(b => [b.dataset.owners, Number(b.dataset.block)])"
    )
    by_letters = {}
    for letters, block in blocks:
        by_letters.setdefault(letters, []).append(block)
    return by_letters


def test_two_pages_share_an_engine(open_page, server):
    mine, other = open_page(), open_page()
    mine.click("#pause")
    for view in (mine, other):
        expect(view.locator("#state")).to_have_text("paused", timeout=SECONDS)
    ask(mine, n=2, temperature=0.001)
    expect_queue(mine, "Waiting", "A")
    ask(other, "What is the capital of France? Say it slowly, and then once more.")
    for view in (mine, other):
        expect_queue(view, "Waiting", "A B")
        expect_number(view, "blocks free", "60 of 60")
    mine.click("#one-step")
    for view in (mine, other):
        expect_queue(view, "Running", "A A1 B")
    assert held(mine) == held(other)
    assert set(held(mine)) == {"A A1", "B"}, "the samples share what they have"
    mine.click("#one-step")
    expect(mine.locator("#words")).to_contain_text("A, A1 and B decode", timeout=SECONDS)
    # Whose is whose: letters in the conversation, an outline at the tables.
    expect(mine.locator("#talk > p .badge")).to_have_text(["A", "A1"])
    expect(other.locator("#talk > p .badge")).to_have_text(["B"])
    expect(other.locator("#tables .yours .badge")).to_have_text(["B"])
    assert mine.locator("#tables .slot.filled").first.text_content() != ""
    expect(mine.locator("#chart svg.rows")).to_have_attribute(
        "aria-label", re.compile("^Timeline, steps 0–1")
    )
    # A closed tab frees its blocks before your eyes.
    lost = held(mine)["B"]
    other.close()
    expect_queue(mine, "Running", "A A1")
    assert "B" not in " ".join(held(mine))
    told = f"B is aborted and gives back {block_list(lost)}."
    expect(mine.locator("#words")).to_contain_text(told)
    # And what was asked is answered, as without glass.
    mine.click("#resume")
    expect(mine.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
    with server.client() as client:
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        answer = client.post("/v1/chat/completions", json=body).json()
    text = answer["choices"][0]["message"]["content"]
    expect(mine.locator("#talk > p > span:last-child")).to_have_text([text, text])
    expect_number(mine, "blocks free", "60 of 60")


def test_a_second_question_finds_the_first_in_the_cache(open_page):
    view = open_page()
    ask(view)
    expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
    ask(view, "And who made you?")
    expect(view.locator("#talk p")).to_have_count(4)
    expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
    found = view.locator("#numbers div", has_text="prefix cache").locator("dd")
    expect(found).not_to_have_text(re.compile("^0 of"), timeout=SECONDS)
    view.click("#anew")
    expect(view.locator("#talk p")).to_have_count(0)


def test_requests_of_other_clients_are_shown_as_what_they_are(open_page, server):
    """With kind, prompt and answers; without the page's own, and those before it was opened."""
    with server.client() as client:
        client.post("/v1/completions", json={"prompt": "Before", "max_tokens": 5})
    view = open_page()
    ask(view)
    with server.client() as client:
        prompt = {"prompt": "The capital of <b>France</b> is", "max_tokens": 5, "ignore_eos": True}
        completion = client.post("/v1/completions", json={**prompt, "n": 2, "seed": 1})
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
        chat = client.post("/v1/chat/completions", json=body)
    others = view.locator("#talk .other")
    expect(others).to_have_count(2, timeout=SECONDS)
    expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
    expect(others.nth(0).locator("summary")).to_contain_text("client 1 · 10 tokens · finished")
    assert others.locator("p").count() == 0, "a line each, opened on click"
    for place in range(2):
        others.nth(place).locator("summary").click()
    expect(others.locator("small")).to_have_text(["Completion", "Chat"])
    expect(others.nth(0).locator(".prompt")).to_have_text(prompt["prompt"])
    expect(others.nth(1).locator(".prompt")).to_have_text("Hello")
    answers = [choice["text"].strip() for choice in completion.json()["choices"]]
    for index, text in enumerate(answers):
        expect(others.nth(0).locator("p").nth(1 + index)).to_contain_text(text)
    answer = chat.json()["choices"][0]["message"]["content"]
    expect(others.nth(1).locator("p").nth(1)).to_contain_text(answer.strip())
    expect(view.locator("#talk > p")).to_have_count(2)
    view.click("#anew")
    expect(others).to_have_count(0)


def test_stop_and_slow_motion(open_page):
    view = open_page()
    view.select_option("#pace", "3")
    expect(view.locator("#state")).to_have_text("3 steps a second", timeout=SECONDS)
    ask(view)
    view.click("#stop")
    expect(view.locator("#talk p small")).to_have_text("You stopped it.")
    expect_number(view, "running", 0)
    expect_number(view, "blocks free", "60 of 60")
    expect(view.locator("#stop")).to_be_hidden()
    view.select_option("#pace", "")
    expect(view.locator("#state")).to_have_text("running", timeout=SECONDS)


def test_what_the_server_refuses_is_said(open_page):
    view = open_page()
    ask(view, "word " * 2000)
    expect(view.locator("#talk p small")).to_contain_text(
        "the context holds 512 tokens", timeout=SECONDS
    )
    assert open_page.noise.pop().startswith("Failed to load resource: the server responded with a")


def test_texts_cannot_break_out(open_page):
    view = open_page()
    ask(view, "<b id=x>bold</b><img src=x onerror=alert(1)>")
    expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
    assert view.locator("#x").count() == 0
    assert view.locator("#talk .mine").text_content().startswith("<b id=x>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_by_day_and_by_night(open_page, scheme):
    for width in (400, 1300):
        view = open_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        ask(view)
        expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
        assert view.evaluate("document.documentElement.scrollWidth") == width
        paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.search(r"\d+", paper)[0])
        assert red > 200 if scheme == "light" else red < 60


def test_with_a_key_and_a_server_that_goes(chromium):
    with serving("--glass", "--api-key", "secret") as server:
        view = chromium.new_page()
        view.goto(f"{server.url}/glass")
        view.fill("#key", "secret")
        view.press("#key", "Enter")
        expect(view.locator("#numbers dd").first).to_be_visible(timeout=SECONDS)
        expect(view.locator("#unlock")).to_be_hidden()
        ask(view)
        expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
        assert len(view.locator("#talk p").last.text_content()) > 5
        expect(view.locator("#gone")).to_be_hidden()
    expect(view.locator("#gone")).to_be_visible(timeout=SECONDS)
    view.close()


def test_without_sizes_the_pool_is_small_and_three_buttons_fill_it(chromium):
    with BackgroundServer("--glass") as server:
        view = chromium.new_page()
        view.goto(f"{server.url}/")
        assert view.url == f"{server.url}/glass"
        small = "48 blocks of 16 slots, one of them the null block. Few on purpose: --num-gpu"
        expect(view.locator("#sizes")).to_contain_text(small, timeout=SECONDS)
        scheduler = server.engine.engine_core.scheduler
        view.click("#eight")
        lines = view.locator("#talk .other")
        expect(lines).to_have_count(8, timeout=SECONDS)
        expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
        view.click("#fill")
        expect(lines).to_have_count(12, timeout=SECONDS)
        expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
        assert scheduler.num_preemptions > 0
        found = view.locator("#numbers div", has_text="prefix cache").locator("dd")
        before = int(found.text_content().split()[0])
        view.click("#twice")
        expect(lines).to_have_count(14, timeout=SECONDS)
        expect(view.locator("#talk .going")).to_have_count(0, timeout=SECONDS)
        assert int(found.text_content().split()[0]) >= before + 64
        assert "<|im_end|>" not in view.locator("#words").text_content()
        view.close()


def test_an_answer_that_the_servers_end_cuts_does_not_look_finished(chromium):
    with serving("--glass") as server:
        view = chromium.new_page()
        view.goto(f"{server.url}/glass")
        view.select_option("#pace", "10")
        ask(view, "Tell me a story about a king.", most=100_000 // 300)
        expect(view.locator("#talk p.going")).to_contain_text(re.compile(r"\w{3}"), timeout=SECONDS)
        words = view.locator("#talk p span:last-of-type").last
        expect(words).not_to_have_text("", timeout=SECONDS)
    expect(view.locator("#talk p.cut small")).to_contain_text("before the answer", timeout=SECONDS)
    ask(view)
    expect(view.locator("#talk p.cut small").last).to_have_text("The server cannot be reached.")
    view.close()


def test_a_stream_without_its_end_does_not_look_finished(open_page):
    view = open_page()
    chunk = '{"choices": [{"index": 0, "delta": {"content": "Once upon"}, "finish_reason": null}]}'
    body = f"data: {chunk}\n\n"
    view.route("**/v1/chat/completions", lambda route: route.fulfill(
        body=body, content_type="text/event-stream"
    ))  # fmt: skip
    ask(view)
    cut = view.locator("#talk p.cut")
    expect(cut).to_contain_text("Once upon", timeout=SECONDS)
    expect(cut.locator("small")).to_have_text("The server stopped before the answer ended.")


def test_a_server_in_its_place_is_the_one_that_is_described(chromium):
    with serving("--glass", "--num-gpu-blocks-override", "61") as server:
        view = chromium.new_page()
        view.goto(f"{server.url}/glass")
        expect(view.locator("#sizes")).to_contain_text("61 blocks of 32", timeout=SECONDS)
        port = str(server.port)
    with serving(
        "--glass", "--block-size", "16", "--num-gpu-blocks-override", "70", "--port", port
    ):
        expect(view.locator("#sizes")).to_contain_text("70 blocks of 16", timeout=SECONDS)
        expect(view.locator("#talk .problem")).to_have_text("The server was started again.")
    view.close()


def test_a_numbers_field_shows_a_long_number_whole(open_page):
    view = open_page()
    view.fill("#most", "100000")
    assert view.evaluate("most.scrollWidth <= most.clientWidth")
    paint = "button => getComputedStyle(button).backgroundColor"
    assert view.eval_on_selector("#send", paint) != view.eval_on_selector("#anew", paint)


@pytest.fixture
def attached(chromium):
    """Open the page of ``glass --attach`` for a file."""
    running = []

    def attached(path):
        server = AttachedServer(path)
        running.append(server)
        view = chromium.new_page()
        view.goto(f"{server.url}/glass")
        return view

    yield attached
    for server in running:
        server.stop()


class AttachedServer:
    """The application of ``minivllm glass --attach`` in a thread, on a port that is free."""

    def __init__(self, path):
        self._run = AttachedRun(path)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self):
        app = make_app(self._run)
        config = uvicorn.Config(app, "127.0.0.1", 0, log_level="warning")
        self._server = uvicorn.Server(config)
        serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._show = app.state.glass
        self._ready.set()
        await serving

    def stop(self):
        self._show.close()
        self._run.close()
        self._server.should_exit = True
        self._thread.join(10)


def test_a_recorded_run_has_a_scrubber_and_no_chat(attached):
    view = attached(WAITS)
    slider = view.locator("#slider")
    expect(view.locator("h1")).to_contain_text("recorded, ended at step 304", timeout=SECONDS)
    expect(slider).to_have_attribute("max", "304")
    for name in ("#text", "#send", "#pause", "#n"):
        assert view.locator(name).count() == 0
    slider.focus()
    slider.press("End")
    slider.press("ArrowLeft")
    expect(view.locator("#step")).to_have_text("step 303 of 0–304")


def test_a_run_that_grows_is_live_and_steps_back_on_a_page_of_its_own(attached, tmp_path):
    lines = gzip.decompress(WAITS.read_bytes()).decode().splitlines(keepends=True)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(lines[:100]))
    view = attached(path)
    expect(view.locator("#state")).to_contain_text(re.compile(r"^step \d+, "), timeout=SECONDS)
    assert view.locator("#text").count() == view.locator("#pause").count() == 0
    expect(view.locator("#numbers dd").first).not_to_have_text("0")
    view.click("#back")
    expect(view.locator("h1")).to_contain_text("recorded up to step", timeout=SECONDS)
    expect(view.locator("#step")).to_have_text(re.compile("^step 0 of"))
