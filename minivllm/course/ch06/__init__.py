"""Notebook 06: Preemption: when the blocks run out."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Scheduling", needs=("03", "04", "05"))
