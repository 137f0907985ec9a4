"""Notebook 03: Paged blocks and block tables."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch03.lab_allocate_slots import LAB as allocate_slots

CHAPTER = Chapter(topic="First", needs=("01", "02"), labs=(allocate_slots,))
