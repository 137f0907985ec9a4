"""Notebook A5: A real model."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Real weights", needs=("08", "14", "18"))
