"""Notebook 27: Hybrid models: a memory that forgets."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch27.figures.held_blocks import held_blocks
from minivllm.course.ch27.lab_agree import LAB as agree
from minivllm.course.ch27.lab_window_hit import LAB as window_hit
from minivllm.course.ch27.lab_worth_keeping import LAB as worth_keeping

CHAPTER = Chapter(
    topic="Windows",
    needs=("08", "13"),
    labs=(window_hit, agree, worth_keeping),
    figures=(held_blocks,),
)
