"""Notebook 18: Quantization: weights in a few bits."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch18.figures.pushed_error import pushed_error

CHAPTER = Chapter(topic="Fewer bits", needs=("13",), figures=(pushed_error,))
