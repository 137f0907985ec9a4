"""Notebook 08b: Prefix caching: preemption and salts."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Known prefixes", needs=("06", "08"))
