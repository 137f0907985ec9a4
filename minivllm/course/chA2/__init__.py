"""Notebook A2: Measure your machine."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.chA2.figures.time_shares import time_shares

CHAPTER = Chapter(topic="Machines", needs=("A1",), figures=(time_shares,))
