"""Notebook A1: The roofline: how fast could it be?"""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Machines", needs=("07", "09"))
