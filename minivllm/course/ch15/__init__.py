"""Notebook 15: Structured outputs: only tokens that can still become an answer."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch15.figures.automaton import automaton
from minivllm.course.ch15.figures.token_strips import TokenStrip, token_strips
from minivllm.course.ch15.lab_mask import LAB as mask

CHAPTER = Chapter(
    topic="From logits to answers",
    needs=("12",),
    labs=(mask,),
    figures=(automaton, TokenStrip, token_strips),
)
