"""The site in a real browser, built with npm's Pyodide: ``pytest -m browser``."""

import json
import re
import time

import pytest
from axe import serious

pytestmark = pytest.mark.browser
WIDTHS = (400, 800, 1180, 1440, 1920)
SECONDS = 60_000  # milliseconds
NOTEBOOK = "05_continuous_batching.html"
KINDS = ("index.html", "course.html", "code.html", NOTEBOOK, "A1_roofline.html", "teach/05.html",
         "guide/vllm-map.html", "guide/glossary.html", "guide/reference.html")  # fmt: skip
OUTPUTS = """() => [...document.querySelectorAll(".cell[data-runs]")].map(cell =>
  [cell.dataset.number, ...[...cell.querySelectorAll(".outputs > *")].map(it =>
    it.classList.contains("figure") ? it.innerHTML.replace(/ style="min-width[^"]*"/, "")
      : it.textContent.trimEnd())])"""
WIDE = """() => [...document.querySelectorAll(".cell .code pre")]
  .filter(it => it.scrollWidth > it.clientWidth).map(it => it.textContent.slice(0, 80))"""
SIDEWAYS = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.documentElement)"
# Words of Latin letters that a cell of a table has on two lines.
BROKEN = r"""() => [...document.querySelectorAll("td, th")].flatMap(cell => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  const all = text => [...text.data.matchAll(/[A-Za-z]{3,24}/g)];
  while (walker.nextNode()) for (const { 0: word, index } of all(walker.currentNode)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, index);
    range.setEnd(walker.currentNode, index + word.length);
    const tops = [...range.getClientRects()].map(box => Math.round(box.top));
    if (new Set(tops).size > 1) found.push(word);
  }
  return found;
})"""
# The smallest letters of figures, in pixels as they are seen; a PNG's are of 8 points at 100 dpi.
LETTERS = """() => Math.min(99,
  ...[...document.querySelectorAll("svg text")].map(
    text => text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize)),
  ...[...document.querySelectorAll("main img")].map(
    image => 8 * 100 / 72 * image.getBoundingClientRect().width / image.naturalWidth))"""


# Where an editor's letters do not lie on those in colours: the boxes of the two and their font.
OVERLAID = """cell => {
  const [below, above] = [".editor pre", ".editor textarea"].map(it => cell.querySelector(it));
  const [one, other] = [below, above].map(it => it.getBoundingClientRect());
  const faults = ["left", "top", "width", "height"].filter(it => Math.abs(one[it] - other[it]) > 1);
  const styles = [below, above].map(it => getComputedStyle(it));
  const same = ["font", "lineHeight", "letterSpacing", "paddingLeft", "tabSize", "whiteSpace"];
  return [...faults, ...same.filter(it => styles[0][it] !== styles[1][it])];
}"""


def open_at(page, address, width=1180):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    return page


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


# -- reading ---------------------------------------------------------------------------------------


def test_pages_fit_their_window_and_break_no_word_and_shrink_no_letter(still, site):
    """All pages; code fits from 800 px on, and a figure reaches out of the column of the text."""
    sitemap = still.request.get(site + "sitemap.xml").text()
    names = re.findall(r"<loc>https://example.org/minivllm/(.*?)</loc>", sitemap)
    assert set(KINDS) - {"index.html"} <= set(names)
    for name in names:
        open_at(still, site + name, WIDTHS[-1])
        for width in WIDTHS:
            still.set_viewport_size({"width": width, "height": 900})
            where = f"{name or 'index.html'} at {width}"
            assert still.evaluate(SIDEWAYS) == 0, where
            assert still.evaluate(BROKEN) == [], where
            assert still.evaluate(LETTERS) >= (9 if width == 400 else 10.5), where
            assert width < 800 or still.evaluate(WIDE) == [], where


@pytest.mark.parametrize("name", [*KINDS, "404.html"])
def test_accessibility(page, site, name):
    for width, scheme in zip(WIDTHS, ("light", "dark", "dark", "light", "dark"), strict=True):
        page.emulate_media(color_scheme=scheme)
        found = serious(open_at(page, site + name, width))
        assert not found, f"{width}, {scheme}: {found}"
    page.emulate_media(color_scheme="light")


def test_the_page_that_is_not_there_has_its_looks(page, site):
    """Wherever the address leads: what it needs is named from the root of the server."""
    html = page.request.get(site + "404.html").text()
    for address in ("nope", "teach/deep/nope"):
        page.route(
            f"**/{address}", lambda route: route.fulfill(body=html, content_type="text/html")
        )
        open_at(page, site + address)
        expect(page.locator("h1")).to_have_text("No such page")
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.top')).position") == "sticky"
        )
        links = page.eval_on_selector_all(
            "main a[href]", "all => all.map(a => a.getAttribute('href'))"
        )
        assert "/minivllm/course.html" in links
        assert page.locator(".logo svg").bounding_box()["width"] < 40
    sitemap = page.request.get(site + "sitemap.xml").text()
    assert "https://example.org/minivllm/course.html" in sitemap


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_reader_chooses_colours(page, site, scheme):
    """Against the system's: page, figures and matplotlib's pictures; and they stay so."""
    other = {"light": "dark", "dark": "light"}[scheme]
    page.emulate_media(color_scheme=other)
    open_at(page, site + "07_chunked_prefill.html")
    page.select_option("#theme", scheme)
    for _ in range(2):
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = page.evaluate("getComputedStyle(document.querySelector('.figure svg')).fill")
        picture = page.evaluate("document.querySelector('picture source').media")
        dark = ("rgb(22, 23, 26)", "rgb(216, 216, 216)", "all")
        light = ("rgb(251, 250, 247)", "rgb(26, 26, 26)", "not all")
        assert (paper, ink, picture) == (dark if scheme == "dark" else light)
        page.reload()
    one, other = page.evaluate("""[false, true].map(disabled => {
      const button = document.createElement("button");
      Object.assign(button, { disabled, textContent: "x" });
      document.querySelector("main").append(button);
      return ["color", "cursor"].map(it => getComputedStyle(button)[it]);
    })""")
    assert all(mine != its for mine, its in zip(one, other, strict=True))  # what cannot be pressed
    page.select_option("#theme", "")
    page.emulate_media(color_scheme="light")


def test_the_playground_has_the_letters_and_the_mark_of_the_site(page, site):
    looks = """() => document.fonts.ready.then(() => [
      getComputedStyle(document.querySelector(".logo .full")).fill,
      [...document.fonts].some(it => it.family.includes("Inter") && it.status === "loaded")])"""
    found = [
        open_at(page, site + name).evaluate(looks)
        for name in ("code.html", "playground/index.html")
    ]
    assert found[0] == found[1] == ["rgb(230, 159, 0)", True]


def test_a_station_that_is_gone_to_is_not_below_the_strip(still, site):
    for width in WIDTHS:
        open_at(still, site + "code.html#scheduling-scheduler", width)
        strip = still.locator(".stations").bounding_box()
        heading = still.locator("#scheduling-scheduler").bounding_box()
        assert heading["y"] >= strip["y"] + strip["height"], width
        assert heading["y"] < 200, width


def test_a_link_from_elsewhere_has_a_card_and_a_description(page, site):
    told = set()
    for name in KINDS:
        html = page.request.get(site + name).text()
        content = dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)">', html))
        assert content["og:image"] == "https://example.org/minivllm/card.png"
        assert 40 < len(content["description"]) < 250
        assert content["og:description"] == content["description"]
        told.add(content["description"])
    assert len(told) == len(KINDS)
    card = page.request.get(site + "card.png").body()
    assert [int.from_bytes(card[at : at + 4], "big") for at in (16, 20)] == [1200, 630]


def test_the_first_page_says_all_without_scrolling_and_its_toy_moves(page, site):
    open_at(page, site, 1440)
    assert page.title() == "How an LLM server works, in Python you can read · minivllm"
    for what in ("h1", ".go .main", "#install", ".proofs li:last-child", "#toy .said"):
        box = page.locator(what).bounding_box()
        assert box["y"] + box["height"] <= 900, what
    links = page.eval_on_selector_all("main a", "all => all.map(a => a.href)")
    for name in (
        "00_quickstart.html", "playground/index.html", "code.html", "90_minutes.html",
        "guide/build_your_own.html", "guide/vllm-map.html", "course.html#for-teachers",
    ):  # fmt: skip
        assert site + name in links
        assert page.request.get(site + name).ok
    waits = page.locator("#toy .chat.lost")
    expect(waits).to_have_count(1)
    expect(waits).to_contain_text("gave its blocks to")
    page.locator("#blocks").fill("24")
    expect(page.locator("#toy .lines svg")).to_have_attribute("aria-label", "Timeline: 14 steps")
    expect(waits).to_have_count(0)
    page.locator("#blocks").fill("10")
    page.locator("#time").fill("27")
    expect(page.locator("#toy .time output")).to_have_text("step 28 of 29")
    page.click("#toy button")
    expect(page.locator("#toy .time output")).to_have_text("step 29 of 29")
    expect(page.locator("#toy button")).to_have_text("Play")  # it ends, and stays there


@pytest.mark.parametrize("name", ["index.html", "course.html", "code.html", NOTEBOOK,
                                  "guide/glossary.html", "404.html"])  # fmt: skip
def test_every_stop_of_the_keyboard_has_a_name(page, site, name):
    open_at(page, site + name)
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("""() => { const it = document.activeElement;
          return it.getAttribute("aria-label") || it.textContent.trim() ||
            it.labels?.[0]?.textContent; }""")
        assert name, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")


def test_search_finds_each_term_in_english_and_in_chinese(page, site):
    open_at(page, site + "course.html")
    terms = [
        it for it in json.loads(page.request.get(site + "search.json").text()) if it["chinese"]
    ]
    assert len(terms) > 100
    missed = page.evaluate("""async terms => {
      const { search } = await import(new URL("search.js", document.baseURI));
      const first = (query, url) => search(query).slice(0, 3).some(hit => hit.url === url);
      const names = it => [it.title, it.chinese, ...it.chinese.split(/[（）]/).filter(Boolean)];
      return terms.filter(it => !names(it).every(name => first(name, it.url))).map(it => it.title);
    }""", terms)  # fmt: skip
    assert missed == []
    page.keyboard.press("/")
    page.fill("#query", "how do I start")
    expect(page.locator("#hits a").first).to_have_attribute("href", re.compile("index.html#start"))
    page.fill("#query", "chunked prefill")
    urls = page.eval_on_selector_all("#hits a", "all => all.slice(0, 4).map(a => a.href)")
    assert urls[0].endswith("glossary.html#term-chunked-prefill")
    assert any("/07_chunked" in url for url in urls)
    assert not any("/teach/" in url for url in urls)
    texts = page.locator("#hits span").all_text_contents()
    ends = {found[1] for text in texts if (found := re.search(r"(\w+)…$", text))}
    known = set(re.findall(r"\w+", page.request.get(site + "search.json").text()))
    assert ends
    assert ends <= known  # no word is cut
    assert not any("pip install" in text for text in texts)
    page.fill("#query", "前缀缓存")
    expect(page.locator("#hits a").first).to_contain_text("prefix caching")
    page.press("#query", "Enter")
    expect(page).to_have_url(re.compile("glossary.html#term-prefix-caching"))


# -- asked in a lecture, without Python ------------------------------------------------------------


def test_a_guess_opens_its_answer_and_the_quiz_tells_why_and_both_need_no_python(page, site):
    open_at(page, site + "00_quickstart.html")
    form, answer = page.locator("form.guess").first, page.locator("details.answer").first
    assert not answer.get_attribute("open")
    assert page.locator("details.told").first.get_attribute("open") is None
    form.locator("input").fill("12")
    form.locator("button").click()
    expect(form).to_contain_text("Your guess: 12.")
    assert answer.get_attribute("open") is not None
    assert page.locator("details.told").first.get_attribute("open") is not None
    questions = page.locator(".quiz fieldset")
    expect(questions).to_have_count(5)
    questions.first.locator("[data-right]").check()
    expect(questions.first.locator("[role=status]")).to_contain_text("Right: ")
    questions.nth(1).locator("input:not([data-right])").first.check()
    expect(questions.nth(1).locator("[role=status]")).to_contain_text("Not yet: ")
    expect(page.locator(".score")).to_have_text("1 of 5 are right.")
    page.reload()
    expect(page.locator(".score")).to_have_text("1 of 5 are right.")
    fetched = page.evaluate("performance.getEntriesByType('resource').map(it => it.name)")
    assert not any("pyodide" in name for name in fetched)


def test_boxes_of_the_map_and_cards_lead_to_pages(page, site):
    open_at(page, site + "course.html")
    links = page.eval_on_selector_all(".map a", "all => all.map(a => a.href.baseVal)")
    links += page.eval_on_selector_all(".card a", "all => all.map(a => a.getAttribute('href'))")
    assert len(links) > 90
    for link in sorted(set(links)):
        assert page.request.get(site + link).ok, link


# -- running ---------------------------------------------------------------------------------------


def test_pythons_files_are_there_before_it_is_needed(chromium, site):
    """The page has asked for all of them; Python starts as the pointer comes to a button."""
    page = chromium.new_page()
    page.goto(site + NOTEBOOK)
    asked = set(page.eval_on_selector_all("link[rel=prefetch]", "all => all.map(it => it.href)"))
    assert all(page.request.get(url).ok for url in asked)
    assert page.locator(".running-bar").is_hidden()
    assert not page.workers
    needed = set()
    page.context.on("request", lambda request: needed.add(request.url))
    with page.expect_worker():
        page.hover('[aria-label="Run cell 3"]')
    assert page.locator(".running-bar").is_hidden()  # nothing runs yet
    page.click('[aria-label="Run cell 3"]')
    expect(page.locator('[data-number="3"] .tools')).to_contain_text(" s", timeout=SECONDS)
    of_python = {url for url in needed if "/playground/" in url and "worker.js" not in url}
    assert of_python == asked
    assert len(page.workers) == 1
    page.goto(site + "20_parallelism.html")  # which does not run
    assert page.locator("link[rel=prefetch]").count() == 0
    page.close()


def test_a_notebook_runs_on_its_page(page, site):
    begin = time.monotonic()
    open_at(page, site + NOTEBOOK)
    stored = page.evaluate(OUTPUTS)
    page.click('[aria-label="Run cell 3"]')
    expect(page.locator('[data-number="3"] .tools')).to_contain_text(" s", timeout=SECONDS)
    assert time.monotonic() - begin < 20
    page.fill(".guess input", "5000")
    page.click(".guess button")  # which runs its answer
    expect(page.locator("details.answer").first).to_contain_text("guessed 5000", timeout=SECONDS)
    page.click("#runner .all")
    expect(page.locator(".running-bar")).to_contain_text(
        re.compile(r"Cell \d+ of 21"), timeout=SECONDS
    )
    expect(page.locator(".running")).to_have_count(0, timeout=SECONDS)
    expect(page.locator("#runner")).to_contain_text("of 21 cells in")
    assert len(stored) == 21
    # a page runs no engine, and so has no device to tell of
    told = [
        [number, *(t for t in texts if not t.startswith("Device: "))] for number, *texts in stored
    ]
    assert page.evaluate(OUTPUTS) == told
    assert page.locator(".listing .highlight").count() > 2  # in colours, as they were stored
    marked = page.locator(".cell:not([data-runs])")
    assert marked.count() == 4
    assert not marked.locator("button.run").count()
    for cell in marked.all():
        expect(cell.locator(".needs")).to_contain_text("Needs a model, and so PyTorch")

    cell = page.locator('[data-number="8"]')
    original = cell.locator(".outputs").text_content()
    cell.locator(".edit").click()
    code = cell.locator("textarea")
    code.fill("before = 6 * 7\nprint(before)\nbefore.append(1)\n")
    code.press("Control+Enter")
    expect(cell.locator(".failed")).to_have_text(re.compile("Line 3: AttributeError: 'int'"))
    assert cell.locator(".stdout").text_content() == "42\n"
    colours = cell.locator(".editor pre span")
    assert colours.evaluate_all("all => all.map(it => [it.className, it.textContent])") == [
        ["mi", "6"], ["mi", "7"], ["nb", "print"], ["mi", "1"],
    ]  # fmt: skip
    assert cell.evaluate(OVERLAID) == []
    assert not serious(page)
    code.fill("while True:\n    pass")
    cell.locator(".run").click()
    page.click(".running-bar .stop")
    expect(cell.locator(".failed")).to_have_text("Stopped.")
    page.reload()  # which loses nothing that was written
    expect(code).to_have_value("while True:\n    pass")
    cell.locator(".edit").click()  # the original
    cell.locator(".run").click()  # in a new Python: those above it run first
    expect(cell.locator(".tools")).to_contain_text(" s", timeout=SECONDS)
    assert cell.locator(".outputs").text_content() == original
