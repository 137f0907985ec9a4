"""Notebook A4: Your first change in vLLM."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="In vLLM", needs=("05", "06", "08"))
