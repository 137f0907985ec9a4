"""Notebook 10: Paged attention in Triton."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch10.lab_copy import COPY as copy
from minivllm.course.ch10.lab_copy import MASKED_ADD as masked_add
from minivllm.course.ch10.lab_decode import DECODE as decode
from minivllm.course.ch10.lab_decode import DECODE_ONE as decode_one
from minivllm.course.ch10.lab_online_softmax import LAB as online_softmax
from minivllm.course.ch10.lab_rows import ROW_SOFTMAX as row_softmax
from minivllm.course.ch10.lab_rows import TABLE_SUM as table_sum

CHAPTER = Chapter(
    topic="Kernels",
    needs=("09",),
    labs=(copy, masked_add, table_sum, row_softmax, online_softmax, decode_one, decode),
)
