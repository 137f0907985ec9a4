"""The site in a real browser, built with npm's Pyodide: ``pytest -m browser``."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe import serious
from static_site import serving_folder

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
WIDTHS = (400, 1180, 1920)
SECONDS = 60_000  # milliseconds
NOTEBOOK = "05_continuous_batching.html"
KINDS = ("index.html", "course.html", "code.html", NOTEBOOK, "A1_roofline.html", "teach/05.html",
         "guide/vllm-map.html", "guide/glossary.html", "guide/reference.html")  # fmt: skip
OUTPUTS = """() => [...document.querySelectorAll(".cell[data-runs]")].map(cell =>
  [cell.dataset.number, ...[...cell.querySelectorAll(".outputs > *")].map(it =>
    it.className === "figure" ? it.innerHTML : it.textContent.trimEnd())])"""
WIDE = """() =>
  [...document.querySelectorAll(".cell .code pre, .cell .code code, .md-typeset__table")]
  .filter(it => it.scrollWidth > it.clientWidth).map(it => it.textContent.slice(0, 80))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict",
         "-f", ROOT / ".github/mkdocs.yml", "-d", folder],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True,
    )  # fmt: skip
    with serving_folder(folder) as url:
        yield url


@pytest.fixture(scope="module")
def page(chromium, site):
    """A page that has asked this server alone in the end, and said nothing."""
    noise, requests = [], []
    page = chromium.new_page(reduced_motion="reduce")
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    page.close()
    assert not noise
    here = urlsplit(site).netloc
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {here}


@pytest.fixture(scope="module")
def still(chromium):
    """A page without scripts, which is there at once; its layout is the same."""
    context = chromium.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def open_at(page, address, width=1180):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    return page


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_its_window(still, site, width):
    for name in KINDS:
        open_at(still, site + name, width)
        assert still.evaluate("document.documentElement.scrollWidth") == width, name


def test_code_and_tables_fit(still, site):
    """From 1,180 px on, where the table of contents is beside them."""
    names = [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")]
    for name in [*(f"{name}.html" for name in names), *KINDS]:
        assert not open_at(still, site + name).evaluate(WIDE), name
    for width in (1220, 1400, 1920):  # the navigation comes beside them, and letters grow
        assert not open_at(still, site + "08_prefix_caching.html", width).evaluate(WIDE), width


@pytest.mark.parametrize("name", ["index.html", "course.html", NOTEBOOK])
def test_accessibility(page, site, name):
    for width, scheme in [*((width, "light") for width in WIDTHS), (1180, "dark")]:
        page.emulate_media(color_scheme=scheme)
        found = serious(open_at(page, site + name, width))
        assert not found, f"{width}, {scheme}: {found}"
    page.emulate_media(color_scheme="light")


def test_the_first_page_leads_everywhere_and_its_run_moves(page, site):
    open_at(page, site)
    links = page.eval_on_selector_all(".md-content a", "all => all.map(a => a.href)")
    for name in (
        "playground/index.html", "course.html", "code.html", "90_minutes.html",
        "guide/build_your_own.html", "guide/glossary.html", "course.html#for-teachers",
    ):  # fmt: skip
        assert site + name in links
        assert page.request.get(site + name).ok
    expect(page.locator("#film-play")).to_have_text("Play")  # less motion was asked for
    for step in (3, 15):
        page.locator("#film-step").fill(str(step))
        expect(page.locator("#film-at")).to_have_text(f"step {step} of 15")
        pool = page.locator("#film-pool svg")
        expect(pool).to_have_attribute("aria-label", re.compile(f"step {step}"))
    page.click("#film-play")
    expect(page.locator("#film-at")).to_have_text("step 0 of 15")
    page.click("#film-play")


def test_boxes_of_the_map_and_cards_lead_to_pages(page, site):
    open_at(page, site + "course.html")
    links = page.eval_on_selector_all(".map a", "all => all.map(a => a.href.baseVal)")
    links += page.eval_on_selector_all(".card a", "all => all.map(a => a.getAttribute('href'))")
    assert len(links) > 90
    for link in sorted(set(links)):
        assert page.request.get(site + link).ok, link


# -- running ---------------------------------------------------------------------------------------


def test_a_notebook_runs_on_its_page(page, site):
    begin = time.monotonic()
    open_at(page, site + NOTEBOOK)
    stored = page.evaluate(OUTPUTS)
    page.click('[aria-label="Run cell 3"]')
    expect(page.locator('[data-number="3"] .tools')).to_contain_text("Ran in", timeout=SECONDS)
    assert time.monotonic() - begin < 20
    page.click("#runner .all")
    expect(page.locator(".running")).to_have_count(0, timeout=SECONDS)
    assert len(stored) == 21
    # a page runs no engine, and so has no device to tell of
    told = [
        [number, *(t for t in texts if not t.startswith("Device: "))] for number, *texts in stored
    ]
    assert page.evaluate(OUTPUTS) == told
    marked = page.locator(".cell:not([data-runs])")
    assert marked.count() == 4
    assert not marked.locator("button.run").count()
    for cell in marked.all():
        expect(cell.locator(".needs")).to_contain_text("Needs a model, and so PyTorch")

    cell = page.locator('[data-number="6"]')
    original = cell.locator(".outputs").text_content()
    cell.locator(".edit").click()
    code = cell.locator("textarea")
    code.fill("before = 6 * 7\nprint(before)\nbefore.append(1)\n")
    code.press("Control+Enter")
    expect(cell.locator(".failed")).to_have_text(re.compile("Line 3: AttributeError: 'int'"))
    assert cell.locator(".stdout").text_content() == "42\n"
    assert not serious(page)
    code.fill("while True:\n    pass")
    cell.locator(".run").click()
    page.click("#runner .stop")
    expect(cell.locator(".failed")).to_have_text("Stopped.")
    cell.locator(".edit").click()  # the original
    cell.locator(".run").click()  # in a new Python: those above it run first
    expect(cell.locator(".tools")).to_contain_text("Ran in", timeout=SECONDS)
    assert cell.locator(".outputs").text_content() == original
