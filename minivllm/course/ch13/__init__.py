"""Notebook 13: Memory: where the gigabytes go."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch13.figures.memory_bars import memory_bars

CHAPTER = Chapter(topic="Memory", needs=("01", "03"), figures=(memory_bars,))
