"""The exercises of the notebooks: ``chNN`` of notebook NN, ``labs`` and ``quiz`` of all.

Imported in a notebook, it says on which device its engines run: see ``minivllm/lab/device.py``.
"""

from minivllm.lab.device import choose_device, on_gpu
from minivllm.lab.exercises import (
    ch00,
    ch01,
    ch02,
    ch03,
    ch04,
    ch04b,
    ch05,
    ch06,
    ch06b,
    ch07,
    ch08,
    ch08b,
    ch09,
    ch10,
    ch11,
    ch12,
    ch13,
    ch13b,
    ch14,
    ch14b,
    ch15,
    ch16,
    ch17,
    ch18,
    ch19,
    ch20,
    ch21,
    ch21b,
    ch22,
    ch24,
    ch26,
    chA1,
    chA2,
    chA3,
    chA4,
    chA5,
    labs,
)
from minivllm.lab.exercises.exercise import ask, points
from minivllm.lab.exercises.lesson_table import lesson_table
from minivllm.lab.exercises.quiz import QUIZZES as quiz
from minivllm.lab.exercises.requests import make_request

__all__ = [
    "ask", "ch00", "ch01", "ch02", "ch03", "ch04", "ch04b", "ch05", "ch06", "ch06b", "ch07", "ch08",
    "ch08b", "ch09", "ch10", "ch11", "ch12", "ch13", "ch13b", "ch14", "ch14b", "ch15", "ch16",
    "ch17", "ch18", "ch19", "ch20", "ch21", "ch21b", "ch22", "ch24", "ch26", "chA1", "chA2", "chA3",
    "chA4", "chA5", "labs", "lesson_table", "make_request", "on_gpu", "points", "quiz",
]  # fmt: skip

choose_device()
