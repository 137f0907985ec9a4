"""Drawings that are kept as SVG: each label of one is a message."""

import re

from minivllm.lab.translation import TEXTS, translated

# A text of a drawing: its tag, and what it says.
LABEL = re.compile(r"(<(?:text|title|desc)\b[^>]*>)([^<]*[a-z]{2}[^<]*)<")
MINUTES = re.compile(r"(\d+) min(?: · needs (.+))?")  # of a lecture on the map


def labels_of(svg: str) -> list[str]:
    """The labels that are words; names of classes and files are what they are."""
    found = [text for _, text in LABEL.findall(svg) if not MINUTES.fullmatch(text)]
    return [text for text in found if " " in text or (text.isalpha() and text.islower())]


def in_language(svg: str) -> str:
    """A drawing in the language of the site."""
    if not TEXTS:
        return svg
    svg = LABEL.sub(lambda label: f"{label[1]}{label_of(label[2])}<", svg)
    svg = re.sub(r' textLength="[^"]*"', "", svg)  # that of the English letters
    return re.sub(r'(?<=aria-label=")[^"]*', lambda alt: translated(alt[0]), svg)


def label_of(text: str) -> str:
    """A label in the language of the site."""
    if (told := MINUTES.fullmatch(text)) is None:
        return translated(text)
    minutes = translated("{minutes} min").format(minutes=told[1])
    return minutes + (f" · {translated('after {numbers}').format(numbers=told[2])}" * bool(told[2]))
