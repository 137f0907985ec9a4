"""Texts that are data: TOML files in the folder of a chapter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from minivllm.lab.translation import translated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COURSE = Path(__file__).parents[1]


def read_toml(name: str) -> dict[str, Any]:
    """Return a TOML file of the course, such as ``ch05/why.toml``."""
    return tomllib.loads((COURSE / name).read_text(encoding="utf-8"))


def one_line(text: str) -> str:
    """Return a text of a TOML file in one line: a line break there counts as a blank."""
    return " ".join(text.split())


def unwrap(text: str) -> str:
    """Return a text of a TOML file in one line, in the language that is set."""
    return translated(one_line(text))
