"""Texts that are data: TOML files beside the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


def read_toml(name: str) -> dict[str, Any]:
    """Return a TOML file of this folder, such as ``why.toml``."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def unwrap(text: str) -> str:
    """Return a text of a TOML file in one line: a line break there counts as a blank."""
    return " ".join(text.split())
