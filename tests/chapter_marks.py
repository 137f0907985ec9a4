"""Marks of the chapters: ``pytest -m chapter05`` runs all that belongs to notebook 05."""

from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def register(config):
    """Make a mark known for each notebook; one such as 04b has that of 04."""
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        number, _, name = path.stem.partition("_")
        if number == number[:2] and f"chapter{number}" not in known:
            config.addinivalue_line("markers", f"chapter{number}: {name.replace('_', ' ')}")
