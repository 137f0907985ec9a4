"""Chapter: the place of a notebook in the course, and what its folder offers to readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chapter:
    """One notebook's.

    Args:
        topic: the heading that it has on the map of the course.
        needs: numbers of the notebooks to read first.
        labs: function and class labs, in the order in which they are asked.
        figures: what ``minivllm.viz`` has of this chapter, by the names of these.
    """

    topic: str
    needs: tuple[str, ...]
    labs: tuple[Any, ...] = ()
    figures: tuple[Callable, ...] = ()
