"""Notebook 05: Continuous batching."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch05.figures.flat_batch import padded_batch, step_mask
from minivllm.course.ch05.figures.queues import queues
from minivllm.course.ch05.lab_schedule import LAB as schedule

CHAPTER = Chapter(
    topic="Scheduling",
    needs=("01", "03"),
    labs=(schedule,),
    figures=(padded_batch, queues, step_mask),
)
