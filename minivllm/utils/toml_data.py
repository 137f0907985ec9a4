"""Data of the package that is kept in TOML files beside the code."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_toml(package: str | None, name: str) -> dict[str, Any]:
    """The content of ``name.toml`` in a package."""
    assert package is not None, "the module is in a package"
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
