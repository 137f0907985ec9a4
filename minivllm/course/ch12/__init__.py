"""Notebook 12: Sampling: from logits to a token."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch12.figures.probability_lines import probability_lines
from minivllm.course.ch12.lab_top_p import LAB as top_p

CHAPTER = Chapter(
    topic="From logits to answers",
    needs=("05",),
    labs=(top_p,),
    figures=(probability_lines,),
)
