"""The site's Chinese half in a real browser: ``pytest -m browser``."""

import json
import re
from html import unescape
from urllib.parse import urldefrag, urljoin

import pytest
from axe import serious

pytestmark = pytest.mark.browser
WIDTHS = (400, 1180, 1920)
SECONDS = 60_000  # milliseconds
FILES = re.compile(r"zh/[\w/]+\.(?:ipynb|svg)|playground/zh\.html")  # that pages lead to
LECTURE = "zh/05_continuous_batching.html"
KINDS = ("zh/index.html", "zh/course.html", "zh/code.html", LECTURE, "zh/90_minutes.html",
         "zh/guide/glossary.html", "zh/guide/cheat-sheet.html", "zh/404.html",
         "zh/A3_cpu_kernel.html")  # fmt: skip
# Three English words and more in a row, outside of code, quotations and what is marked as English.
ENGLISH = r"""() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  const quiet = "code, pre, script, style, em, strong, .outputs, [lang=en]";
  const english = /(?<![\w-])[A-Za-z]{2,}(?:[ ,]+[a-z]{2,}){2,}/;
  while (walker.nextNode()) {
    const { data, parentElement } = walker.currentNode;
    const said = data.replace(/（[^）]*）|"[^"]*"/g, "");  // a name in brackets, a line of a log
    if (english.test(said) && !parentElement.closest(quiet)) found.push(data.trim().slice(0, 80));
  }
  for (const element of document.querySelectorAll("[aria-label], [placeholder], [title]"))
    for (const name of ["aria-label", "placeholder", "title"]) {
      const text = element.getAttribute(name) ?? "";
      if (english.test(text) && !element.closest(quiet)) found.push(`${name}: ${text}`);
    }
  return found;
}"""


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


@pytest.fixture(scope="module")
def pages(still, site):
    """HTML of all pages of both halves, by address below the site."""
    found = {}
    for half in ("", "zh/"):
        sitemap = still.request.get(f"{site}{half}sitemap.xml").text()
        names = re.findall(r"<loc>https://example.org/minivllm/(.*?)</loc>", sitemap)
        for name in [*names, f"{half}404.html"]:
            found[name or f"{half}index.html"] = still.request.get(site + name).text()
    return found


def links_of(html):
    """Addresses of a page's links, as they are written."""
    return [unescape(href) for href in re.findall(r'<a\b[^>]*? href="([^"]+)"', html)]


def test_the_switch_of_each_page_leads_to_the_same_place_and_back(pages, site):
    english = [name for name in pages if not name.startswith("zh/")]
    assert len(english) * 2 == len(pages) > 200
    for name in english:
        for here, there, tag in ((name, f"zh/{name}", "en"), (f"zh/{name}", name, "zh-CN")):
            html = pages[here]
            switch = re.search(r'<a class="half" href="([^"]+)" hreflang="([^"]+)"', html)
            # the page that is not there is named from the root of the server
            base = "https://example.org/minivllm/"
            assert urljoin(base + here, switch[1]) == base + there, here
            assert f'<html lang="{tag}">' in html, here
            assert switch[2] == {"en": "zh-CN", "zh-CN": "en"}[tag]
            told = dict(re.findall(r'rel="alternate" hreflang="([^"]+)" href="([^"]+)"', html))
            assert told == {
                "en": base + name, "x-default": base + name, "zh-CN": f"{base}zh/{name}",
            }  # fmt: skip


def test_a_page_without_translation_is_the_english_one_and_says_so(pages):
    untranslated = [name for name, html in pages.items() if "本页尚未翻译" in html]
    assert "zh/A3_cpu_kernel.html" in untranslated
    assert not {LECTURE, "zh/index.html", "zh/course.html", "zh/code.html"} & set(untranslated)
    for name in untranslated:
        assert '<article lang="en">' in pages[name]
        address = f"https://example.org/minivllm/{name.removeprefix('zh/')}"
        assert f'<link rel="canonical" href="{address}">' in pages[name]


def test_links_of_the_chinese_half_stay_in_it_and_lead_to_a_place(pages, site):
    ids = {name: set(re.findall(r'\bid="([^"]+)"', html)) for name, html in pages.items()}
    outside = set()
    for name, html in pages.items():
        if not name.startswith("zh/") or name == "zh/404.html":
            continue
        for href in links_of(html):
            address, anchor = urldefrag(urljoin(site + name, href))
            if href.startswith(("http", "mailto:")):
                continue
            assert address.startswith(site), (name, href)
            target = address.removeprefix(site)
            if target in pages:
                assert not anchor or anchor in ids[target], (name, href)
                if not target.startswith("zh/") and target != name.removeprefix("zh/"):
                    outside.add((name, href))
            else:
                assert FILES.fullmatch(target), (name, href)
    assert not outside


def test_sections_have_one_address_in_both_languages(pages):
    for name in ("05_continuous_batching.html", "course.html", "guide/build_your_own.html"):
        one, other = (
            re.findall(r'<h[1-4] id="([^"]+)"', pages[half + name]) for half in ("", "zh/")
        )
        assert one == other
        assert len(one) > 3


def test_the_switch_keeps_the_place_on_the_page(page, site):
    page.goto(site + "course.html#for-teachers")
    page.click(".half")
    expect(page.locator("#for-teachers")).to_be_visible()
    assert page.url == site + "zh/course.html#for-teachers"
    page.click(".half")
    page.wait_for_url(site + "course.html#for-teachers")


def test_a_page_in_chinese_says_nothing_in_english(page, site, pages):
    names = [name for name, html in pages.items()
             if name.startswith("zh/") and "本页尚未翻译" not in html]  # fmt: skip
    assert len(names) > 20
    told = {}
    for name in names:
        page.goto(site + name)
        page.wait_for_load_state("networkidle")
        told[name] = page.evaluate(ENGLISH)
    assert {name: found for name, found in told.items() if found} == {}


@pytest.mark.parametrize("name", KINDS)
def test_it_can_be_read_at_each_width_and_without_eyes(page, site, name):
    for width, scheme in zip(WIDTHS, ("light", "dark", "light"), strict=True):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(site + name)
        assert page.evaluate("document.documentElement.scrollWidth") == width, width
        found = serious(page)
        assert not found, f"{width}, {scheme}: {found}"
    page.emulate_media(color_scheme="light")


def test_search_finds_terms_and_lectures_in_chinese(page, site):
    page.set_viewport_size({"width": 1180, "height": 900})
    page.goto(site + "zh/course.html")
    sections = json.loads(page.request.get(site + "zh/search.json").text())
    terms = [it for it in sections if it["chinese"]]
    assert len(terms) > 100
    missed = page.evaluate("""async terms => {
      const { search } = await import(new URL("../search.js", document.baseURI));
      const first = (query, url) => search(query).slice(0, 3).some(hit => hit.url === url);
      return terms.filter(it => !first(it.chinese, it.url) || !first(it.title, it.url))
        .map(it => it.chinese);
    }""", terms)  # fmt: skip
    assert missed == []
    page.keyboard.press("/")
    page.fill("#query", "连续批处理")
    first = page.locator("#hits a").first
    expect(first).to_contain_text("连续批处理 · continuous batching")
    urls = page.eval_on_selector_all("#hits a", "all => all.slice(0, 4).map(a => a.href)")
    assert any(url.startswith(site + LECTURE) for url in urls)
    page.press("#query", "Enter")
    expect(page).to_have_url(re.compile("zh/guide/glossary.html#term-continuous-batching"))


def test_a_lecture_is_asked_and_runs_in_chinese(page, site):
    page.goto(site + LECTURE)
    form = page.locator("form.guess").first
    expect(form).to_contain_text("先猜一猜")
    questions = page.locator(".quiz fieldset")
    questions.first.locator("[data-right]").check()
    expect(questions.first.locator("[role=status]")).to_contain_text(re.compile("^正确：.*[一-龥]"))
    expect(page.locator(".score")).to_have_text("5 题中答对 1 题。")
    note = page.locator("a.word").first
    assert re.search("[一-龥].* · [a-z]", note.get_attribute("data-note"))
    stored = page.locator('[data-number="3"] .outputs').text_content()
    assert re.search("[一-龥]", stored)
    exercise = page.locator(".cell[data-runs]", has_text="ch05.puzzle(").first
    asked = exercise.locator(".outputs").text_content()
    assert re.search("[一-龥]{8}", asked)
    number = exercise.get_attribute("data-number")
    page.click(f'.cell[data-number="{number}"] .tools .run')
    expect(page.locator(".running")).to_have_count(0, timeout=3 * SECONDS)
    expect(page.locator("#runner")).to_contain_text("格，用时")
    assert page.locator('[data-number="3"] .outputs').text_content() == stored
    assert exercise.locator(".outputs").text_content() == asked


def test_below_zh_the_page_that_is_not_there_is_chinese(page, site):
    html = page.request.get(site + "404.html").text()
    page.route("**/zh/nope", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(site + "zh/nope")
    expect(page.locator("h1")).to_have_text("没有这个页面")
    assert page.evaluate("getComputedStyle(document.querySelector('.top')).position") == "sticky"
    page.unroute("**/zh/nope")
