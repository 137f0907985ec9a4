"""Notebook 18b: Packed words: where a checkpoint keeps its codes."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch18b.figures.word_tiles import word_tiles
from minivllm.course.ch18b.lab_dequantize import LAB as dequantize

CHAPTER = Chapter(
    topic="Fewer bits",
    needs=("18",),
    labs=(dequantize,),
    figures=(word_tiles,),
)
