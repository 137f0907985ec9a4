"""Alternative text: a stored picture says in words what it shows, wherever it is looked at."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def pictures(path):
    """Cell number, kind and alternative text of each stored picture."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        for output in cell.get("outputs", ()):
            for kind in output.get("data", {}).keys() & {"image/png", "image/svg+xml"}:
                alt = output["metadata"].get(kind, {}).get("alt", "")
                inside = re.search("<desc>(.+?)</desc>", "".join(output["data"][kind]))
                yield number, kind, alt or (inside[1] if inside else "")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_picture_has_an_alternative_text(path):
    without = [(number, kind) for number, kind, alt in pictures(path) if len(alt) < 20]
    assert not without, f"return viz.plot(figure, alt) in {without}"
