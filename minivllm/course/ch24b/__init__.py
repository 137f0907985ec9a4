"""Notebook 24b: Cross-encoders: one prompt a pair."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Vectors", needs=("24",))
