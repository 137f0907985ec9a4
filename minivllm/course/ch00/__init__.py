"""Notebook 00: Quickstart: a language model server on your laptop."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="First", needs=())
