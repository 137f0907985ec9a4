"""The index of the search: what can be found are sections of pages, and terms of the glossary."""

import re

from pages.glossary import terms
from pages.links import text_of

from minivllm.lab.translation import translated

HEADING = re.compile(r'<h([1-4])[^>]* id="([^"]+)"[^>]*>(.*?)</h\1>', re.DOTALL)
# What is no prose: code, what a cell printed, pictures, the form of the quiz, and how to run it.
OTHER = re.compile(
    r'<div data-cell="\d+"></div>|<div class="runs".*?</div>|<a class="headerlink".*?</a>'
    r"|<(pre|svg|form|dialog|style)\b.*?</\1>",
    re.DOTALL,
)
# How much a section counts, by the beginning of its page's address; of any other page, 1.
WEIGHTS = {
    "course": 2, "index": 4, "teach/": 0.3, "guide/vllm-map": 0.3, "guide/reference": 0.5,
    "guide/performance": 0.5, "guide/house": 0.6, "90_minutes": 0.6, "code": 0.6, "guide/": 1,
}  # fmt: skip
LECTURE = 1.5
LONGEST = 1500  # characters of a section that are kept


def weight_of(url: str) -> float:
    """How much a page's sections count."""
    found = (weight for start, weight in WEIGHTS.items() if url.startswith(start))
    return next(found, LECTURE)


def sections_of(html: str, url: str, page: str) -> list[dict]:
    """Sections of a page: address, title, text.

    Args:
        html: of the page, before its cells are filled in.
        url: of the page, from the root of the site.
        page: its title.
    """
    if url == "guide/glossary.html":
        return entries(url)
    parts = HEADING.split(OTHER.sub(" ", html))
    found = []
    for _, anchor, title, text in zip(*[iter(parts[1:])] * 4, strict=True):
        heading = text_of(title).removesuffix("¶").strip()
        found.append(section(f"{url}#{anchor}", heading, page, text_of(text), weight_of(url)))
    return found


def entries(url: str) -> list[dict]:
    """The glossary's sections: its terms."""
    return [
        section(f"{url}#{it.anchor}", it.name, translated("Glossary"), it.plain, 3, it.chinese)
        for it in terms()
    ]


def section(url, title, page, text, weight, chinese="") -> dict:
    return {"url": url, "title": title, "page": page, "text": text[:LONGEST], "weight": weight,
            "chinese": chinese}  # fmt: skip
