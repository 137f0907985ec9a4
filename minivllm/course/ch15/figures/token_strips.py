"""Token strips: what may come next at each place of a text, a row each, by classes of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.draw.svg import text_width
from minivllm.utils.validation import check

ROW = 26
NARROWEST = 74
ALL = {"fill": "#8cc3e6"}
SOME = {"fill": "#d5e8f4"}
NONE = {"fill": PAPER}
CHOSEN = {"fill": "none", "stroke": "#d55e00", "stroke_width": 3}


@dataclass(frozen=True)
class TokenStrip:
    """One place of a text, and what may come there.

    Args:
        label: where it is.
        allowed: ids of the tokens that may come.
        chosen: the one that came, if one did.
        note: a few words more.
    """

    label: str
    allowed: Collection[int]
    chosen: int | None = None
    note: str = ""


def token_strips(
    strips: Sequence[TokenStrip], vocab_size: int, title: str | None = None,
    mark: Sequence[Mark] = (), classes: Mapping[str, Collection[int]] | None = None,
) -> Figure:  # fmt: skip
    """Draw a table: a row for each place, and how many tokens of each class may come there.

    Full blue is a class of which every token may come, pale one of which some may. An orange frame
    is the class of the token that came.

    Args:
        strips: from the first place to the last.
        vocab_size: how many tokens there are.
        title, mark: what it shows, and places to point at: (label, text) or (label, class, text).
        classes: ids of tokens by the name of their class; all others are the last class.

    Raises:
        ValueError: if there is no strip, or an id that is not in the vocabulary.
    """
    check(len(strips) > 0, "strips", strips, "at least one")
    for strip in strips:
        ids = {*strip.allowed, *({strip.chosen} - {None})}
        ok = all(0 <= i < vocab_size for i in ids)
        check(ok, "allowed", sorted(ids)[-1:], f"token ids below {vocab_size}")
    named = {name: set(ids) for name, ids in (classes or {}).items()}
    others = set(range(vocab_size)).difference(*named.values())
    named |= {"other" if named else "all tokens": others}
    head = f"What may come next, of {vocab_size:,} tokens"
    facts = "allowed tokens of each class"
    counts = [[len(ids.intersection(strip.allowed)) for ids in named.values()] for strip in strips]
    told = "; ".join(f"{strip.label}: {_facts(strip, vocab_size)}" for strip in strips)
    left = MARGIN + max(text_width(strip.label) for strip in strips) + 10
    heads = [f"{name} ({len(ids):,})" for name, ids in named.items()]
    widths = [max(NARROWEST, text_width(name, 11) + 10) for name in heads]
    right = left + sum(widths) + max(text_width(s.note) for s in strips) + 12
    bottom = HEADER_HEIGHT + 20 + ROW * len(strips) + 6
    legend = [(box_swatch(stroke=LINE, **ALL), "every token of the class may come"),
              (box_swatch(stroke=LINE, **SOME), "some may")]  # fmt: skip
    if classes and any(strip.chosen is not None for strip in strips):
        legend.append((box_swatch(**CHOSEN), "the token that came"))
    drawing = sheet(head, facts, f"{head}: {told}.", right=right, bottom=bottom, legend=legend)
    for row, (strip, numbers) in enumerate(zip(strips, counts, strict=True)):
        x, y = left, HEADER_HEIGHT + 20 + ROW * row
        drawing.text(left - 8, y + 17, strip.label, text_anchor="end")
        drawing.place((strip.label,), left, y, sum(widths), ROW)
        for name, count, width in zip(named, numbers, widths, strict=True):
            size = len(named[name])
            look = NONE if count == 0 else ALL if count == size else SOME
            drawing.rect(x, y, width, ROW, f"{name}: {count} of {size}", stroke=LINE, **look)
            drawing.place((strip.label, name), x, y, width, ROW)
            middle = {"text_anchor": "middle", "fill": INK if count else GREY}
            drawing.text(x + width / 2, y + 17, f"{count:,}", **middle)
            if classes and strip.chosen in named[name]:
                drawing.rect(x + 2, y + 2, width - 4, ROW - 4, **CHOSEN)
            x += width
        drawing.text(x + 12, y + 17, strip.note, fill=GREY)
    x = left
    for name, width in zip(heads, widths, strict=True):
        middle = {"text_anchor": "middle", "fill": GREY, "font_size": 11}
        drawing.text(x + width / 2, HEADER_HEIGHT + 13, name, **middle)
        x += width
    width = max(len(strip.label) for strip in strips)
    lines = [f"{strip.label:{width}s}  {_facts(strip, vocab_size)}" for strip in strips]
    if classes:
        shares = (", ".join(f"{name} {n}" for name, n in zip(named, numbers, strict=True) if n)
                  for numbers in counts)  # fmt: skip
        lines = [f"{line}: {share or '-'}" for line, share in zip(lines, shares, strict=True)]
    return finish(drawing, "\n".join([head, *lines]), title, mark)


def _facts(strip: TokenStrip, vocab_size: int) -> str:
    count = "all" if len(strip.allowed) == vocab_size else f"{len(strip.allowed):,}"
    return f"{count} allowed" + (f", {strip.note}" if strip.note else "")
