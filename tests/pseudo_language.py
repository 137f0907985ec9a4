"""A language whose texts are the English ones in brackets: what has none on a page is not a text.

It needs a package of its own beside the catalogue, since a process finds catalogues there.
"""

import os
from pathlib import Path

import polib

import minivllm
from minivllm.lab.translation.catalogue import KEPT, LOCALE

PACKAGE = Path(minivllm.__file__).parent
# Texts that name something for a browser or a plot.
NAMES = {"en": "xx", "DejaVu Sans": "DejaVu Sans"}

# What a page shows outside of brackets; called with names that stay as they are.
OUTSIDE = Path(__file__).with_name("outside_brackets.js").read_text(encoding="utf-8")


def pseudo_package(folder: Path) -> dict[str, str]:
    """Variables of a process that has the language "xx", too; the package's files are links."""
    package = folder / "minivllm"
    locale = package / "lab" / "locale"
    locale.mkdir(parents=True)
    for within in ("", "lab", "lab/locale"):
        for path in (PACKAGE / within).iterdir():
            link = package / within / path.name
            if not link.exists() and path.name != "__pycache__":
                link.symlink_to(path)
    entries = polib.pofile(str(LOCALE / "zh" / "lab.po"))
    for entry in entries:
        if entry.msgstr and KEPT not in entry.flags:  # of others it is not known what is a key
            entry.msgstr = NAMES.get(entry.msgid, f"⟦{entry.msgid}⟧")
            entry.flags = []
    (locale / "xx").mkdir()
    entries.save(str(locale / "xx" / "lab.po"))
    return {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
