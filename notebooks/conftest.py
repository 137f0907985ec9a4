"""Marks; and matplotlib's font cache, built before any notebook runs so that no cell reports it."""

from pathlib import Path

import matplotlib.font_manager  # noqa: F401


def pytest_collection_modifyitems(config, items):
    """A notebook belongs to the chapter it is numbered by, and takes longer than a quick look."""
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("slow")
            if (mark := f"chapter{item.path.name[:2]}") in known:
                item.add_marker(mark)
