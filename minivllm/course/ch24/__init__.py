"""Notebook 24: Pooling: an engine that never samples."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch24.figures.attention_masks import attention_masks
from minivllm.course.ch24.figures.pooled_rows import pooled_rows
from minivllm.course.ch24.lab_mean import LAB as mean_rows

CHAPTER = Chapter(
    topic="Vectors",
    needs=("07", "08"),
    labs=(mean_rows,),
    figures=(attention_masks, pooled_rows),
)
