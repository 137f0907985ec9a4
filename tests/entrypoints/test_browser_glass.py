"""The glass server's page in a real browser: ``pytest -m browser``; see ``test_browser.py``."""

import re

import pytest
from http_server import serving

from minivllm.lab.viz.draw.wording import block_list

pytestmark = pytest.mark.browser
SECONDS = 20_000  # milliseconds
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
    expect(mine.locator("#chart")).to_have_attribute("aria-label", re.compile("^Timeline, steps 0–1"))
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
