"""Figure and Plot: a picture (SVG or PNG) with its text rendering and its alt text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minivllm.lab.viz.draw.claim import Mark, add_claim, told
from minivllm.lab.viz.draw.svg import Drawing


@dataclass(frozen=True, repr=False)
class Figure:
    """An SVG figure with its text rendering and its alt text.

    A notebook shows the SVG and a terminal the text; both are the same bytes on every run of the
    same trace, so that a test can compare them.

    Args:
        svg: a complete SVG document, without scripts or anything from elsewhere; its only styles
            are the colours of a dark page.
        text: the same for a terminal, in aligned monospace without colour codes.
        alt: one sentence with the numbers that the picture shows.
    """

    svg: str
    text: str
    alt: str

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"image/svg+xml": self.svg, "text/plain": self.text}
        return data, {"image/svg+xml": {"alt": self.alt}}

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__  # so that a plain Python prompt shows the picture, too


def finish(
    drawing: Drawing, text: str, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """The figure of a drawing, with what its caller claims and points at."""
    if title or mark:
        text, alt = told(text, drawing.alt, title, mark)
        add_claim(drawing, title, mark)
        drawing.describe(title or drawing.root.find("title").text, alt)
    return Figure(drawing.to_string(), text, drawing.alt)


@dataclass(frozen=True, repr=False)
class Plot:
    """A PNG plot by matplotlib with its text rendering and its alt text.

    Args:
        png: the picture; its pixels depend on the version of matplotlib, so no test compares them.
        text: the numbers that matter, in aligned monospace; these are compared.
        alt: one sentence with the most important of them.
    """

    png: bytes
    text: str
    alt: str

    def save(self, path: str | Path) -> None:
        """Write the PNG to a file."""
        Path(path).write_bytes(self.png)

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"image/png": b64encode(self.png).decode(), "text/plain": self.text}
        return data, {"image/png": {"alt": self.alt}}

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__
