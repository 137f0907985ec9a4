"""Notebook 17: LoRA: one base model, many users."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch17.figures.lora_slots import lora_slots
from minivllm.course.ch17.figures.low_rank import low_rank
from minivllm.course.ch17.figures.sorted_rows import sorted_rows
from minivllm.course.ch17.lab_segments import LAB as segments

CHAPTER = Chapter(
    topic="Many users",
    needs=("05", "08"),
    labs=(segments,),
    figures=(lora_slots, low_rank, sorted_rows),
)
