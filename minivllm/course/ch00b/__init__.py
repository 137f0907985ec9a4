"""Notebook 00b: One layer, by hand."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch00b.figures.share_grid import share_grid

CHAPTER = Chapter(topic="Before", needs=(), figures=(share_grid,))
