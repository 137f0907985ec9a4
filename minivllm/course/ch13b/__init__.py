"""Notebook 13b: CUDA graphs: start a whole step with one call."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch13b.figures.launch_lanes import launch_lanes

CHAPTER = Chapter(topic="Memory", needs=("01", "03"), figures=(launch_lanes,))
