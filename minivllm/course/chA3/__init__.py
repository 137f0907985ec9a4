"""Notebook A3: How a CPU kernel reads a block table."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Machines", needs=("09", "A2"))
