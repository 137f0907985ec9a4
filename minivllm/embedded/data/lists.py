"""Lists of words and sentences, from TOML files that lie beside the code."""

from types import SimpleNamespace

from minivllm.utils.toml_data import load_toml


def load_lists(package: str, name: str) -> SimpleNamespace:
    """The entries of ``name.toml`` in a package, as attributes; what is drawn is a list there."""
    return SimpleNamespace(**load_toml(package, name))


WORDS = load_lists(__package__, "words")
"""People, places, jobs and capitals, which several generators share."""
