"""Drawing: the few SVG elements our figures need, on top of the standard library's XML.

GitHub strips ``<style>`` and shows an SVG on whatever background the reader chose, so everything
is a presentation attribute and the paper is part of the picture. A style sheet only exchanges
colours where the reader prefers a dark page; whatever ignores it shows the light picture.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import GREY, INK, PAPER, dark
from minivllm.lab.viz.draw.wording import num_columns

SANS = "Helvetica, Arial, sans-serif"
MONO = "Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS_EM = 0.53  # how wide a character is on average, in font sizes
MONO_EM = 0.61
NARROW = 0.87  # width of a text in Helvetica, measured by that in DejaVu Sans
# and in DejaVu Sans, the widest of those that a machine may put in the place of ours
_WIDTHS = dict.fromkeys("ijlI'|.,:; ·", 0.33) | dict.fromkeys('frt()[]-/"', 0.42)
_WIDTHS |= dict.fromkeys("mwMW@%×→+=<>~", 0.86) | dict.fromkeys("…—", 1.0)

Point = tuple[float, float]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Drawing:
    """An SVG document under construction.

    Keywords of the drawing methods are SVG attributes, with ``_`` for ``-``; numbers are rounded
    to two decimals. ``title`` adds a tooltip.

    Args:
        width, height: in pixels at natural size.
        title: what a screen reader says first.
        alt: and then, in one sentence.
        **attributes: more attributes of the ``<svg>`` element.
    """

    def __init__(self, width: float, height: float, title: str, alt: str, **attributes):
        self.root = ET.Element(
            "svg",
            _attributes(
                xmlns="http://www.w3.org/2000/svg",
                width=width,
                height=height,
                viewBox=f"0 0 {_value(width)} {_value(height)}",
                role="img",
                data_figure="",  # whose colours the style sheet may exchange
                font_family=SANS,
                font_size=12,
                fill=INK,
                **attributes,
            ),
        )
        if (language := translated("en")) != "en":  # a browser chooses forms of characters by it
            self.root.set("lang", language)
        ET.SubElement(self.root, "title")
        ET.SubElement(self.root, "desc")
        self.describe(title, alt)
        self.places: dict[tuple, tuple[float, float, float, float]] = {}
        self._parent = self.root
        self._down = 0.0
        self._prefix = ()
        self._inherited: list[dict] = [{"font_size": 12}]
        self._has_hatch = False
        self.rect(0, 0, width, height, fill=PAPER)

    def describe(self, title: str, alt: str) -> None:
        """Set the words of a screen reader, which reads the label where a picture is inline."""
        self.alt = alt
        self.root.find("title").text = _clean(title)
        self.root.find("desc").text = _clean(alt)
        self.root.set("aria-label", _clean(alt))

    def place(self, key: tuple, x: float, y: float, width: float, height: float) -> None:
        """Name a part of the picture, so that a mark can point at it."""
        self.places[self._prefix + key] = (x, y + self._down, width, height)

    def resize(self, width: float, height: float) -> None:
        """Another size for the paper; what is on it stays where it is."""
        size = _attributes(width=width, height=height)
        self.root.attrib |= size | {"viewBox": f"0 0 {size['width']} {size['height']}"}
        self.root.find("rect").attrib |= size

    def rect(self, x, y, width, height, title=None, **attributes) -> None:
        self._add("rect", title, x=x, y=y, width=width, height=height, **attributes)

    def path(self, d: str, title=None, **attributes) -> None:
        self._add("path", title, d=d, **attributes)

    def text(
        self, x, y, content, room: float | None = None, halo: bool = False, **attributes
    ) -> None:
        """A line of text whose baseline is at ``y``.

        Args:
            x, y: of its anchor.
            content: what it says.
            room: pixels that it may take; with a wide font it is pressed together.
            halo: paper around the letters. It is a text of its own below them: not every
                converter knows ``paint-order``.
            **attributes: of the element.
        """
        content = translated(_clean(str(content)))
        look = {**self._inherited[-1], **attributes}
        if not content:
            return
        mono = look.get("font_family") == MONO
        bold = look.get("font_weight") == "bold"
        needed = text_width(content, look["font_size"], bold, mono)
        if room is not None and needed > room:  # with our own fonts it takes less, and stays so
            length = min(room, needed * NARROW)
            attributes |= {"textLength": length, "lengthAdjust": "spacingAndGlyphs"}
        if halo:
            edge = {"fill": PAPER, "stroke": PAPER, "stroke_width": 3, "stroke_linejoin": "round"}
            self._add("text", None, x=x, y=y, **attributes | edge).text = content
        self._add("text", None, x=x, y=y, **attributes).text = content

    def extend(self, elements: Iterable[ET.Element]) -> None:
        """Add elements of another drawing, with their own ids."""
        self._parent.extend(elements)

    def hatch(self, x, y, width, height) -> None:
        """Diagonal lines over whatever is there."""
        self._define_hatch()
        self.rect(x, y, width, height, fill="url(#hatch)")

    def hatch_path(self, d: str) -> None:
        """The same over an area of any shape."""
        self._define_hatch()
        self.path(d, fill="url(#hatch)")

    def arrow(
        self, path: str, tip: Point, direction: Point, colour: str, width: float = 1.3,
        **attributes,
    ) -> None:  # fmt: skip
        """A line with a head at its end, which points in this direction."""
        self.path(path, fill="none", stroke=colour, stroke_width=width, **attributes)
        x, y = tip
        length = (direction[0] ** 2 + direction[1] ** 2) ** 0.5
        dx = direction[0] / length * 8
        dy = direction[1] / length * 8
        px = -dy * 0.45
        py = dx * 0.45
        left = f"{x - dx + px:g} {y - dy + py:g}"
        right = f"{x - dx - px:g} {y - dy - py:g}"
        self.path(f"M{x:g} {y:g}L{left}L{right}Z", fill=colour)

    @contextmanager
    def group(self, tag: str = "g", **attributes) -> Iterator[None]:
        """Group whose elements inherit these attributes; with the tag "a" it is a link."""
        outer = self._parent
        self._parent = ET.SubElement(outer, tag, _attributes(**attributes))
        self._inherited.append({**self._inherited[-1], **attributes})
        yield
        self._parent = outer
        self._inherited.pop()

    @contextmanager
    def shifted(self, down: float, *prefix: str) -> Iterator[None]:
        """Group further down, whose places have these names in front of theirs."""
        outer = self._down, self._prefix
        self._down += down
        self._prefix += prefix
        with self.group(transform=f"translate(0 {down:g})"):
            yield
        self._down, self._prefix = outer

    def to_string(self) -> str:
        """The document. Ids come from its content: two figures on one page cannot clash."""
        style = ET.Element("style")
        style.text = self._dark_twin()
        self.root.insert(2, style)
        ET.indent(self.root, space="")  # one element a line makes a readable diff
        if self._has_hatch:
            name = "hatch-" + hashlib.sha256(ET.tostring(self.root)).hexdigest()[:8]
            new_names = {"hatch": name, "url(#hatch)": f"url(#{name})"}
            for element in self.root.iter():
                for key in ("id", "fill"):
                    if element.get(key) in new_names:
                        element.set(key, new_names[element.get(key)])
        return ET.tostring(self.root, encoding="unicode")

    def _dark_twin(self) -> str:
        """Rules that exchange each colour of this picture for its partner on dark paper."""
        rules = [f"[data-figure]{{fill:{dark(INK)}}}"]
        used = {(k, e.get(k)) for e in self.root.iter() for k in ("fill", "stroke") if e.get(k)}
        for key, colour in sorted(used):
            if (partner := dark(colour)) != colour:
                rules.append(f'[data-figure] [{key}="{colour}"]{{{key}:{partner}}}')
        return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"

    def _define_hatch(self) -> None:
        if self._has_hatch:
            return
        self._has_hatch = True
        pattern = ET.Element("pattern", _attributes(
            id="hatch", width=6, height=6, patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        ))  # fmt: skip
        ET.SubElement(pattern, "path", d="M0 0V6", stroke=GREY, **{"stroke-width": "2.4"})
        defs = ET.Element("defs")
        defs.append(pattern)
        self.root.insert(2, defs)

    def _add(self, tag: str, title: str | None, **attributes) -> ET.Element:
        element = ET.SubElement(self._parent, tag, _attributes(**attributes))
        if title is not None:
            ET.SubElement(element, "title").text = _clean(title)
        return element


def text_width(text: str, font_size: float = 12, bold: bool = False, mono: bool = False) -> float:
    """Pixels that a text needs with the widest of the usual fonts."""
    if mono:
        return MONO_EM * num_columns(text) * font_size
    em = sum(_WIDTHS.get(c) or (0.7 if c.isupper() else 0.62) for c in text if not _is_wide(c))
    wide = sum(map(_is_wide, text))  # a square each, bold or not
    return (em * (1.1 if bold else 1) + wide) * font_size


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _attributes(**attributes) -> dict[str, str]:
    return {name.replace("_", "-"): _value(value) for name, value in attributes.items()}


def _value(value: float | str) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def _clean(text: str) -> str:
    """XML has no way to say most control characters, escaped or not."""
    return _NOT_XML.sub("\ufffd", text)
