"""Notebook 19: KV quantization: the cache in a byte a number."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch19.lab_attend_codes import LAB as attend_codes

CHAPTER = Chapter(topic="Fewer bits", needs=("06", "13", "18"), labs=(attend_codes,))
