"""Notebook 23: Overlap and disaggregation: two ways not to wait."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch23.lab_move import LAB as move
from minivllm.course.ch23.lab_take_over import LAB as take_over
from minivllm.course.ch23.lab_wanted import LAB as wanted

CHAPTER = Chapter(
    topic="Several devices",
    needs=("07", "08", "20"),
    labs=(wanted, take_over, move),
)
