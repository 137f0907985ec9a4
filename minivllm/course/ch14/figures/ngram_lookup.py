"""N-gram lookup: where the last tokens of a text have occurred before, and what followed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.draw.svg import MONO, Drawing
from minivllm.lab.viz.draw.wording import count, token_label
from minivllm.spec_decode.ngram import propose

CHIP = 52
HEIGHT = 22
ROW = 44
NAMES = 96
BEFORE = 2
MATCH = {"fill": "#f7d98a", "stroke": INK, "stroke_width": 2}
DRAFT = {"fill": "#8fd3bf", "stroke": "#00523c", "stroke_width": 2}
PASSED = {"fill": PAPER, "stroke": "#00523c", "stroke_dasharray": "3 2"}
OTHER = {"fill": "#f4f4f4", "stroke": LINE}

Decode = Callable[[int], str] | None
Chips = list[tuple[int, dict]]


def ngram_lookup(
    token_ids: Sequence[int], min_n: int, max_n: int, k: int, decode: Decode = None,
    title: str | None = None, mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a row for each length of n-gram, the longest first: its first occurrence, and the end.

    The first row that finds anything makes the draft; what shorter n-grams found is dashed.

    Args:
        token_ids: prompt and output so far.
        min_n, max_n: the shortest and the longest n-gram that is looked up.
        k: how many tokens to draft.
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: what it shows, and rows to point at: (length, text).
    """
    tokens = list(token_ids)
    n = len(token_ids)
    drafts = propose(tokens, min_n, max_n, k, n + k)
    found = {length: _first(tokens, length) for length in range(max_n, min_n - 1, -1)}
    chosen = next((length for length, start in found.items() if start is not None), None)
    head = f"N-gram lookup in {count(n, 'token')}"
    told = " ".join(token_label(token, decode, 12) for token in drafts)
    facts = f"{chosen} tokens match, the draft is {told}" if drafts else "nothing is found"
    facts = facts.replace("1 tokens match", "1 token matches")
    lines = [head, facts, ""]
    left = max_n + BEFORE + k
    right = MARGIN + NAMES + CHIP * (left + 1 + max_n)
    bottom = HEADER_HEIGHT + ROW * len(found)
    drawing = sheet(head, facts, f"{head}: {facts}.", right, bottom + 18)
    for index, (length, start) in enumerate(found.items()):
        y = HEADER_HEIGHT + 4 + ROW * index
        drawing.text(MARGIN, y + 15, f"last {length}", font_weight="bold")
        drawing.place((length,), MARGIN + NAMES, y - 1, CHIP * left, HEIGHT + 2)
        end = [(token, MATCH if i >= max_n - length else OTHER)
               for i, token in enumerate(tokens[-max_n:])]  # fmt: skip
        _draw(drawing, end, MARGIN + NAMES + CHIP * (left + 1), y, decode)
        if start is None:
            drawing.text(MARGIN + NAMES, y + 15, "not found before", fill=GREY)
            lines.append(f"last {length}: not found before")
            continue
        chips: Chips = [(t, OTHER) for t in tokens[max(0, start - BEFORE) : start]]
        chips += [(token, MATCH) for token in tokens[start : start + length]]
        follows = tokens[start + length : start + length + k]
        chips += [(token, DRAFT if length == chosen else PASSED) for token in follows]
        drawing.text(MARGIN, y + 28, f"position {start}", fill=GREY, font_size=11)
        _draw(drawing, chips, MARGIN + NAMES, y, decode)
        middle = MARGIN + NAMES + CHIP * (left + 0.5)
        drawing.text(middle, y + 15, "…", text_anchor="middle")
        names = [" ".join(token_label(t, decode, 12) for t in ids)
                 for ids in (tokens[start : start + length], follows)]  # fmt: skip
        arrow = "  <- the draft" if length == chosen else ""
        lines.append(f"last {length}: {names[0]} | at position {start}, then {names[1]}{arrow}")
    drawing.text(MARGIN + NAMES, bottom + 12, "its first occurrence, and what followed", fill=GREY)
    tail = MARGIN + NAMES + CHIP * (left + 1)
    drawing.text(tail, bottom + 12, "the end of the text", fill=GREY)
    return finish(drawing, "\n".join(lines), title, mark)


def _first(tokens: list[int], length: int) -> int | None:
    """First place of the last ``length`` tokens; None if only at the end."""
    starts = range(len(tokens) - length)
    suffix = tokens[len(tokens) - length :]
    return next((s for s in starts if tokens[s : s + length] == suffix), None)


def _draw(drawing: Drawing, chips: Chips, x: float, y: float, decode: Decode) -> None:
    for i, (token, look) in enumerate(chips):
        drawing.rect(x + CHIP * i + 1, y, CHIP - 2, HEIGHT, rx=2, **look)
        drawing.text(
            x + CHIP * (i + 0.5), y + 15, token_label(token, decode, 7), CHIP - 6, font_size=11,
            font_family=MONO, text_anchor="middle",
        )  # fmt: skip
