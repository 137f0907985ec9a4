"""Links from every "notebook 05" to that lecture, and tables that can be read when narrow."""

import re
from html import escape, unescape

ONE = r"(?:\d\d|A\d)b?"
MANY = rf"{ONE}(?:(?:, | and | or | to ){ONE})*"
# What is said: "notebooks 05 and 06", "Chapter 13", "[00, 05]", and "notebooks 05 (…) and 06 (…)".
NAMED = rf"\b(?:[Nn]otebook|[Cc]hapter|[Ll]ecture)s? {MANY}\b"
NEXT = rf"(?<=\))(?:,|,? and) {ONE}(?= \()"
CHINESE = rf"(?<![\w.]){ONE}(?:(?:、| ?[和到至与] ?){ONE})* ?篇"  # 05、06 和 08 篇
SAID = re.compile(rf"{NAMED}|\[{MANY}\]|{NEXT}|{CHINESE}")
# A cell of a column of notebooks, "05, 08"; other columns have numbers of other things.
OF_NOTEBOOKS = re.compile(r'<td data-label="(?:|[^"]*notebooks?|笔记本|篇)"')
CELL = re.compile(rf"^{MANY}$")
TAG = re.compile(r"(<[^>]+>)")
# Where a line may end in a name; a file's ending stays with it.
PLACE = re.compile(r"(?<=[/_.(=])(?=\w)(?!(?:py|sh|md|ya?ml|toml|json|jinja|html|css|js|txt)\b)")
QUIET = ("a", "code", "pre", "svg", "h1", "button", "form", "summary", "script", "style")


def with_lectures(html: str, hrefs: dict[str, str], own: str = "") -> str:
    """HTML in which the numbers of lectures are links.

    Args:
        html: of a page.
        hrefs: by number, where its lecture is, seen from the page.
        own: the number of the page itself, which gets no link.
    """

    def link(number: re.Match) -> str:
        href = hrefs.get(number[0]) if number[0] != own else None
        return f'<a href="{href}">{number[0]}</a>' if href else number[0]

    depth, parts = 0, TAG.split(html)
    for at, part in enumerate(parts):
        if not part.startswith("<"):
            said = CELL if OF_NOTEBOOKS.match(parts[at - 1]) else SAID
            if not depth:
                parts[at] = said.sub(lambda found: re.sub(ONE, link, found[0]), part)
            continue
        name = re.match(r"</?(\w+)", part)
        if name and name[1] in QUIET and not part.endswith("/>"):
            depth += -1 if part.startswith("</") else 1
    return "".join(parts)


def with_labels(html: str) -> str:
    """HTML whose tables scroll in a box, and whose cells know the head of their column.

    Where there is no room a row of many columns becomes a list of its cells, each behind its head.
    """

    def table(found: re.Match) -> str:
        heads = [
            text_of(head) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", found[0], re.DOTALL)
        ]
        kind = "table many" if len(heads) > 3 and all(heads[1:]) else "table"
        rows = re.sub(r"<tr>\n?(<td.*?)</tr>", lambda row: labelled(row[1], heads), found[0],
                      flags=re.DOTALL)  # fmt: skip
        return f'<div class="{kind}">{rows}</div>'

    return re.sub(r"<table>.*?</table>", table, html, flags=re.DOTALL)


def labelled(cells: str, heads: list[str]) -> str:
    """A row whose cells have their column's head, and whose long names may go over two lines."""
    heads = iter(heads)
    cells = re.sub(r"<td\b", lambda _: f'<td data-label="{escape(next(heads, ""))}"', cells)
    return f"<tr>{re.sub(r'<code>[^<]+', lambda name: PLACE.sub('<wbr>', name[0]), cells)}</tr>"


def text_of(html: str) -> str:
    """HTML without tags, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
