"""Notebook 20b: Pipelines and replicas: more devices than one machine has."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch20b.figures.pipeline_grid import pipeline_grid

CHAPTER = Chapter(topic="Several devices", needs=("20",), figures=(pipeline_grid,))
