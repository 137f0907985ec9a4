"""The page behind glass at work: what is in view, what stands still, and what a keyboard finds.

In a real browser, see ``test_browser.py``: ``pytest -m browser``.
"""

import threading

import pytest
from http_server import serving

pytestmark = pytest.mark.browser
SECONDS = 20_000  # milliseconds
WIDTHS = (400, 800, 1180, 1440, 1920)
STREAMS = 8
# Sizes of all letters that a canvas is asked to draw.
NOTE_LETTERS = """
window.letters = new Set();
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (...given) {
  letters.add(Number(this.font.match(/([0-9.]+)px/)[1]));
  return fillText.apply(this, given);
};
"""
LETTERS_OF_FIGURES = """() => {
  const texts = [...document.querySelectorAll('#pool *, #tables *, #queue *')]
    .filter(el => [...el.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .map(el => parseFloat(getComputedStyle(el).fontSize));
  return [...letters, ...texts];
}"""
PLACES = """() => [...document.querySelectorAll('h1, h2, h3, #chart, #pool')].map(el => {
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
  const el = document.activeElement;
  if (el === document.body) return null;
  const said = el.getAttribute('aria-label') || el.labels?.[0]?.textContent || el.textContent;
  return [el.tagName + '#' + el.id, said.trim()];
}"""


@pytest.fixture(scope="module")
def server():
    with serving("--glass", "--num-gpu-blocks-override", "48", "--block-size", "16") as running:
        yield running


@pytest.fixture(scope="module")
def idle(chromium, server):
    view = chromium.new_page(viewport={"width": 1440, "height": 900})
    view.add_init_script(NOTE_LETTERS)
    view.goto(f"{server.url}/glass")
    view.locator("#numbers dd").first.wait_for(timeout=SECONDS)
    yield view
    view.close()


@pytest.fixture(scope="module")
def busy(idle, server):
    """The page while eight streams are answered, ten steps a second."""
    idle.select_option("#pace", "10")

    def stream(number):
        body = {"prompt": f"{number}", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.client() as client:
            client.post("/v1/completions", json=body)

    threads = [threading.Thread(target=stream, args=(i,), daemon=True) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    idle.locator("#numbers div", has_text="running").locator("dd", has_text="8").wait_for()
    yield idle
    idle.select_option("#pace", "")
    for thread in threads:
        thread.join()


def resize(view, width):
    view.set_viewport_size({"width": width, "height": 900})
    view.wait_for_timeout(200)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_stop_of_the_keyboard_has_a_name(idle, width):
    resize(idle, width)
    idle.evaluate("document.activeElement.blur()")
    stops = []
    for _ in range(40):
        idle.keyboard.press("Tab")
        stop = idle.evaluate(NAME)
        if stop is None or stop in stops:
            break
        stops.append(stop)
    assert len(stops) >= 12
    assert all(name for _, name in stops), stops


def test_a_disabled_button_looks_so(idle):
    look = """id => { const { color, cursor } = getComputedStyle(document.getElementById(id));
      return [color, cursor]; }"""
    assert idle.locator("#resume").is_disabled()
    disabled = idle.evaluate(look, "resume")
    enabled = idle.evaluate(look, "pause")
    assert disabled[0] != enabled[0]
    assert (disabled[1], enabled[1]) == ("default", "pointer")


def test_timeline_and_pool_are_in_the_window_and_no_heading_moves(busy):
    resize(busy, 1440)
    frames = busy.evaluate(PLACES_OF_60_FRAMES)
    for name, left, top, right, bottom in frames[-1]:
        if name in ("chart", "pool"):
            assert min(left, top) >= 0, name
            assert (right <= 1440, bottom <= 900) == (True, True), name
    for first, *others in zip(*frames, strict=True):
        moved = max(
            abs(b - a) for other in others for a, b in zip(first[1:], other[1:], strict=True)
        )
        assert moved <= 4, first[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_timeline_is_whole_and_its_letters_can_be_read(busy, width, scheme):
    busy.emulate_media(color_scheme=scheme)
    busy.evaluate("letters.clear()")
    resize(busy, width)
    hidden = busy.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(chart)")
    assert hidden <= 0
    assert min(busy.evaluate(LETTERS_OF_FIGURES)) >= (10.5 if width >= 800 else 9)
    assert busy.evaluate("document.documentElement.scrollWidth") == width


def test_the_space_bar_pauses_and_resumes(busy):
    busy.locator("#chart").click()
    for shown in ("paused", "10 steps a second"):
        busy.evaluate("document.activeElement.blur()")
        busy.keyboard.press(" ")
        busy.locator("#state", has_text=shown).wait_for(timeout=SECONDS)
