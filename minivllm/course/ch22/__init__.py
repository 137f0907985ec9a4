"""Notebook 22: Metrics and honest benchmarks."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch22.figures.buckets import buckets
from minivllm.course.ch22.figures.knee import knee
from minivllm.course.ch22.lab_quantile import LAB as quantile

CHAPTER = Chapter(
    topic="Serving",
    needs=("07", "21b"),
    labs=(quantile,),
    figures=(buckets, knee),
)
