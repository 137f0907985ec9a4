"""Lists of words and sentences, from TOML files that lie beside the code."""

import sys
from importlib.resources import files
from types import SimpleNamespace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_lists(package: str, name: str) -> SimpleNamespace:
    """The entries of ``name.toml`` in a package, as attributes; what is drawn is a list there."""
    text = files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return SimpleNamespace(**tomllib.loads(text))


WORDS = load_lists(__package__, "words")
"""People, places, jobs and capitals, which several generators share."""
