"""Notebook 16: Tool calling: a call read out of a stream."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch16.figures.call_stream import call_stream
from minivllm.course.ch16.lab_tool_stream import LAB as tool_stream

CHAPTER = Chapter(
    topic="From logits to answers",
    needs=("12", "15"),
    labs=(tool_stream,),
    figures=(call_stream,),
)
