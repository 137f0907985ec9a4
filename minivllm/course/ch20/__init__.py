"""Notebook 20: Parallelism: one model on several devices."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch20.figures.sharded_layer import sharded_layer
from minivllm.course.ch20.figures.step_bars import step_bars
from minivllm.course.ch20.lab_mlp import LAB as parallel_mlp

CHAPTER = Chapter(
    topic="Several devices",
    needs=("05", "13"),
    labs=(parallel_mlp,),
    figures=(sharded_layer, step_bars),
)
