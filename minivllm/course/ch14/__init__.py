"""Notebook 14: Speculative decoding: guess, then verify."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch14.figures.ngram_lookup import ngram_lookup
from minivllm.course.ch14.figures.rejection_bars import rejection_bars
from minivllm.course.ch14.lab_propose import LAB as propose

CHAPTER = Chapter(
    topic="From logits to answers",
    needs=("05", "12"),
    labs=(propose,),
    figures=(ngram_lookup, rejection_bars),
)
