"""Notebook 11: Split-KV: many programs for one long sequence."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch11.lab_merge import LAB as merge

CHAPTER = Chapter(topic="Kernels", needs=("09", "10"), labs=(merge,))
