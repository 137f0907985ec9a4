"""Notebook 01: The KV cache, and why."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="First", needs=("00",))
