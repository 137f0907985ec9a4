"""The exercises of the notebooks: ``chNN`` of notebook NN, ``labs`` and ``quiz`` of all.

Imported in a notebook, it says on which device its engines run: see ``minivllm/lab/device.py``.
"""

from minivllm.course import labs
from minivllm.course.asking.exercise import ask, points
from minivllm.course.asking.quiz import QUIZZES as quiz
from minivllm.course.asking.requests import make_request
from minivllm.course.chapters import EXERCISES
from minivllm.lab.device import choose_device, on_gpu
from minivllm.lab.lesson_table import lesson_table

_CHAPTERS = {f"ch{number}": module for number, module in EXERCISES.items()}
globals().update(_CHAPTERS)

__all__ = [*_CHAPTERS, "ask", "labs", "lesson_table", "make_request", "on_gpu", "points", "quiz"]

choose_device()
