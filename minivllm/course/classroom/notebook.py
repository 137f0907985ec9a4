"""read_notebook: a notebook from a file that may be anything; what is wrong is a sentence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import nbformat

from minivllm.utils.validation import check


def read_notebook(path: Path) -> Any:
    """Read a notebook, whichever version of the format it has, as its version 4.

    Returns: an ``nbformat.NotebookNode`` with at least one cell; each cell has its type, a source
        and metadata. Outputs have not been looked at.

    Raises:
        ValueError: if the file cannot be read or holds something else; the message goes on from
            "is no notebook: ".
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no text in UTF-8.") from error
    try:
        return _parsed(text)
    except Exception as error:  # there is no end to what a file may be
        raise ValueError(f"{type(error).__name__}: {error}".split("\n")[0][:300]) from error


def _parsed(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older files have cells without ids
        notebook = nbformat.convert(nbformat.reader.reads(text), 4)
        cells = notebook.get("cells")
        check(isinstance(cells, list) and cells, "cells", cells, "a list of at least one cell")
        for number, cell in enumerate(cells):
            check(_is_cell(cell), f"cells[{number}]", cell, "a cell with type, source and metadata")
        return nbformat.v4.upgrade(notebook)


def _is_cell(cell: Any) -> bool:
    return (
        isinstance(cell, dict)
        and cell.get("cell_type") in ("code", "markdown", "raw")
        and isinstance(cell.get("source"), str)
        and isinstance(cell.get("metadata"), dict)
    )
