"""Notebook 18: Quantization: weights in a few bits."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch18.figures.pushed_error import pushed_error
from minivllm.course.ch18.figures.word_tiles import word_tiles
from minivllm.course.ch18.lab_dequantize import LAB as dequantize

CHAPTER = Chapter(
    topic="Fewer bits",
    needs=("13",),
    labs=(dequantize,),
    figures=(pushed_error, word_tiles),
)
