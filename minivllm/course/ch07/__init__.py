"""Notebook 07: Chunked prefill."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch07.figures.pareto import pareto
from minivllm.course.ch07.lab_cap import LAB as cap

CHAPTER = Chapter(
    topic="Scheduling",
    needs=("05",),
    labs=(cap,),
    figures=(pareto,),
)
