"""Figures of a run, the files in which a run can be kept, and ``show``, which lists our source."""

from minivllm.course.asking.listing import show
from minivllm.course.chapters import CHAPTERS
from minivllm.lab.viz import *  # noqa: F403
from minivllm.lab.viz import __all__ as _SHARED

# A figure that serves one notebook alone is in the folder of its chapter.
_FIGURES = {each.__name__: each for chapter in CHAPTERS.values() for each in chapter.figures}
globals().update(_FIGURES)

__all__ = ["show", *sorted([*_SHARED, *_FIGURES])]
