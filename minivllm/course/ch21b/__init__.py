"""Notebook 21b: A stream on the wire."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch21b.figures.wire_text import wire_text
from minivllm.course.ch21b.lab_join import LAB as join

CHAPTER = Chapter(topic="Serving", needs=("21",), labs=(join,), figures=(wire_text,))
