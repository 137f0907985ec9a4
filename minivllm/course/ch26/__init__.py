"""Notebook 26: X-ray a real vLLM."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch26.lab_fit import LAB as fit_line

CHAPTER = Chapter(topic="In vLLM", needs=("06", "07"), labs=(fit_line,))
