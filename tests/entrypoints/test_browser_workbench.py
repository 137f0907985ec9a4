"""The four workbenches: what is in view, what stands still, and what a keyboard finds.

Playground, glass, report and X-ray are asked the same, each while it goes from step to step.
In a real browser, see ``test_browser.py``: ``pytest -m browser``.
"""

import threading
from contextlib import contextmanager

import pytest
from http_server import serving
from playground_server import serving_playground
from traced_runs import crowd

from minivllm.viz import save_html
from minivllm.xray import report
from minivllm.xray.command import write_pages
from minivllm.xray.shipped import shipped_run

pytestmark = pytest.mark.browser
SECONDS = 20_000  # milliseconds
WIDTHS = (400, 800, 1180, 1440, 1920)
STREAMS = 8
LETTERS = """() => [...document.querySelectorAll('#chart text, #pool *, #tables *, #queue *')]
  .filter(el => el.checkVisibility())
  .filter(el => [...el.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  .map(el => parseFloat(getComputedStyle(el).fontSize) * (el.getScreenCTM?.().a ?? 1))"""
PLACES = """() => [...document.querySelectorAll('h1, h2, h3, #chart, #pool')]
  .filter(el => el.checkVisibility()).map(el => {
    const box = el.getBoundingClientRect();
    return [el.id || el.textContent, box.left, box.top, box.right, box.bottom];
  })"""
PLACES_OF_60_FRAMES = f"""async () => {{
  const places = {PLACES}, seen = [];
  for (let i = 0; i < 60; i++) {{
    await new Promise(requestAnimationFrame);
    seen.push(places());
  }}
  return seen;
}}"""
NAME = """() => {
  const el = document.activeElement, text = id => document.getElementById(id)?.textContent;
  if (el === document.body) return null;
  const by = (el.getAttribute('aria-labelledby') ?? '').split(' ').map(text).join(' ');
  const said = [el.getAttribute('aria-label'), by, el.labels?.[0]?.textContent, el.textContent];
  return [el.outerHTML.slice(0, 80), said.join(' ').trim()];
}"""


@contextmanager
def glass(chromium):
    """The page while eight streams are answered, ten steps a second."""
    sizes = ("--num-gpu-blocks-override", "48", "--block-size", "16")
    with serving("--glass", *sizes) as server:
        view = open_at(chromium, f"{server.url}/glass")
        view.locator("#numbers dd").first.wait_for(timeout=SECONDS)
        view.select_option("#pace", "10")

        def stream(number):
            body = {"prompt": f"{number}", "max_tokens": 400, "ignore_eos": True, "stream": True}
            with server.client() as client:
                client.post("/v1/completions", json=body)

        threads = [threading.Thread(target=stream, args=(i,), daemon=True) for i in range(STREAMS)]
        for thread in threads:
            thread.start()
        view.locator("#numbers div", has_text="running").locator("dd", has_text="8").wait_for()
        yield view
        view.select_option("#pace", "")
        for thread in threads:
            thread.join()
        view.close()


@contextmanager
def playground(chromium):
    with serving_playground() as server:
        view = open_at(chromium, server.url)
        yield view
        view.close()


def open_at(chromium, address):
    view = chromium.new_page(viewport={"width": 1440, "height": 900})
    view.goto(address)
    return view


@pytest.fixture(scope="module", params=["playground", "glass", "report", "xray"])
def view(request, chromium, tmp_path_factory):
    """A page of the workbench, with its pool in view."""
    folder = tmp_path_factory.mktemp("pages")
    if request.param in ("playground", "glass"):
        with {"playground": playground, "glass": glass}[request.param](chromium) as page:
            yield page
        return
    if request.param == "report":
        save_html(crowd(), folder / "report.html")
    else:
        write_pages(report(shipped_run()), folder)
    page = open_at(chromium, (folder / f"{request.param}.html").as_uri())
    yield page
    page.close()


@pytest.fixture
def busy(view):
    """The same while it goes from step to step."""
    view.set_viewport_size({"width": 1440, "height": 900})
    play = view.locator("#play")
    if play.count():
        view.get_by_role("tab", name="Pool").click()
        if play.text_content() == "Play":
            play.click()
    yield view
    if play.count() and play.text_content() == "Pause":
        play.click()


def resize(view, width):
    view.set_viewport_size({"width": width, "height": 900})
    view.wait_for_timeout(200)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_timeline_is_whole_and_letters_can_be_read(busy, width, scheme):
    busy.emulate_media(color_scheme=scheme)
    resize(busy, width)
    assert (
        busy.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(chart)") <= 0
    )
    assert busy.locator("#chart .letter").count() > 4
    assert min(busy.evaluate(LETTERS)) >= 10.5
    assert busy.evaluate("document.documentElement.scrollWidth") == width


def test_timeline_and_pool_are_in_the_window_and_no_heading_moves(busy):
    resize(busy, 1440)
    frames = busy.evaluate(PLACES_OF_60_FRAMES)
    boxes = {name: box for name, *box in frames[-1]}
    for name in ("chart", "pool"):
        left, top, right, bottom = boxes[name]
        assert (left >= 0, top >= 0, right <= 1440) == (True, True, True), name
        if busy.locator("#dock").count():  # the pane that it is in scrolls, and is in view
            pane = busy.locator("#pool-pane").bounding_box()
            bottom = min(bottom, pane["y"] + pane["height"])
        assert bottom <= 900, name
    for first, *others in zip(*frames, strict=True):
        moved = max(
            abs(b - a) for other in others for a, b in zip(first[1:], other[1:], strict=True)
        )
        assert moved <= 4 or first[0] == "pool", first[0]


def test_the_pool_stands_still(busy):
    """Its blocks change, and their places do not."""
    resize(busy, 1440)
    places = """() => [...document.querySelectorAll('#pool .block')]
      .map(el => [el.offsetLeft, el.offsetTop])"""
    before, look = busy.evaluate(places), busy.evaluate("pool.innerHTML")
    for _ in range(100):
        if busy.evaluate("pool.innerHTML") != look:
            break
        busy.wait_for_timeout(100)
    assert busy.evaluate("pool.innerHTML") != look
    assert busy.evaluate(places) == before


@pytest.mark.parametrize("width", WIDTHS)
def test_every_stop_of_the_keyboard_has_a_name(view, width):
    resize(view, width)
    view.locator("header").evaluate("bar => { bar.tabIndex = -1; bar.focus(); }")
    stops = []
    for _ in range(60):
        view.keyboard.press("Tab")
        stop = view.evaluate(NAME)
        if stop is None or stop in stops:
            break
        stops.append(stop)
    assert len(stops) >= 8
    assert [html for html, name in stops if not name] == []


# -- of the glass page alone -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def glassy(chromium):
    with glass(chromium) as page:
        yield page


def test_a_disabled_button_looks_so(glassy):
    look = """id => { const { color, cursor } = getComputedStyle(document.getElementById(id));
      return [color, cursor]; }"""
    glassy.select_option("#pace", "")
    glassy.locator("#state", has_text="running").wait_for(timeout=SECONDS)
    assert glassy.locator("#resume").is_disabled()
    disabled = glassy.evaluate(look, "resume")
    enabled = glassy.evaluate(look, "pause")
    assert disabled[0] != enabled[0]
    assert (disabled[1], enabled[1]) == ("default", "pointer")
    glassy.select_option("#pace", "10")


def test_the_space_bar_pauses_and_resumes(glassy):
    for shown in ("paused", "10 steps a second"):
        glassy.evaluate("document.activeElement.blur()")
        glassy.keyboard.press(" ")
        glassy.locator("#state", has_text=shown).wait_for(timeout=SECONDS)


def test_what_has_not_changed_is_not_drawn_anew(glassy):
    """From step to step the cells that are there stay, and so do blocks that hold the same."""
    kept = glassy.evaluate("""async () => {
      const seen = $ => [...document.querySelectorAll($)];
      const cells = new Set(seen('#chart .moves .part *')), blocks = new Set(seen('#pool .block'));
      const said = document.querySelector('#numbers dd').textContent;
      while (document.querySelector('#numbers dd').textContent === said)
        await new Promise(requestAnimationFrame);
      const share = (before, now) => now.filter(each => before.has(each)).length / now.length;
      return [share(cells, seen('#chart .moves .part *')), share(blocks, seen('#pool .block'))];
    }""")
    assert min(kept) > 0.5, kept
