"""Notebook 04: Copy-on-write: parallel sampling."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch04.lab_copy_on_write import LAB as copy_on_write

CHAPTER = Chapter(topic="Memory", needs=("03",), labs=(copy_on_write,))
