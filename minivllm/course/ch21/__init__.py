"""Notebook 21: Serving: one engine, many clients."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Serving", needs=("03", "05"))
