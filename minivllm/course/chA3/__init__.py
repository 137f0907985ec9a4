"""Notebook A3: How a CPU kernel reads a block table."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.chA3.figures.key_lanes import key_lanes

CHAPTER = Chapter(topic="Machines", needs=("09", "A2"), figures=(key_lanes,))
