"""Notebook 02: Contiguous slabs, and where the memory goes."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch02.figures.waste import waste_bars

CHAPTER = Chapter(topic="First", needs=("01",), figures=(waste_bars,))
