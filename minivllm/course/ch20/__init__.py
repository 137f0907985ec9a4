"""Notebook 20: Parallelism: one model on several devices."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch20.figures.pipeline_grid import pipeline_grid
from minivllm.course.ch20.figures.rank_lanes import rank_lanes
from minivllm.course.ch20.figures.sharded_layer import sharded_layer
from minivllm.course.ch20.lab_mlp import LAB as parallel_mlp

CHAPTER = Chapter(
    topic="Several devices",
    needs=("05", "13"),
    labs=(parallel_mlp,),
    figures=(pipeline_grid, rank_lanes, sharded_layer),
)
