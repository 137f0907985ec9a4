"""Gradebook: a file to which exercises write how an answer did, while a notebook is graded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = "MINIVLLM_GRADEBOOK"  # the environment variable that names it; unset, nothing is written


class Latest:
    """The answer that was graded last, in this process: its entry, and what ``ask`` was given."""

    entry: dict[str, Any]
    asked: tuple[Any, Any] = (None, None)


def is_grading() -> bool:
    """True while a notebook is run for its points alone."""
    return FILE in os.environ


def note_points(
    exercise: str, seed: int | str, points: float, text: str, is_blank: bool = False
) -> None:
    """Note how an answer did; in the file that is one line.

    Args:
        exercise: its name.
        seed: that it was drawn by.
        points: from 0 to 1.
        text: the verdict.
        is_blank: whether there was no answer yet, or only the one that the notebook comes with.
    """
    Latest.entry = {
        "exercise": exercise, "seed": seed, "points": float(points), "text": text,
        "is_blank": is_blank,
    }  # fmt: skip
    Latest.asked = (None, None)
    if path := os.environ.get(FILE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(Latest.entry) + "\n")


def read_points(path: Path) -> dict[str, dict]:
    """Entries by exercise; of several answers to one exercise the last counts.

    A blank one, as a copy of the cell has it, takes nothing from the answer above it, whose entry
    gets "is_blank_below".
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries: dict[str, dict] = {}
    for entry in map(json.loads, lines):
        above = entries.get(entry["exercise"])
        if entry["is_blank"] and above is not None and not above["is_blank"]:
            above["is_blank_below"] = True
        else:
            entries[entry["exercise"]] = entry
    return entries
