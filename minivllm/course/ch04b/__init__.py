"""Notebook 04b: Beam search: forks and frees in every step."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch04b.figures.beam_tree import beam_tree

CHAPTER = Chapter(topic="Memory", needs=("04",), figures=(beam_tree,))
