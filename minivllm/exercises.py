"""The exercises of the notebooks: ``chNN`` of notebook NN, ``labs`` and ``quiz`` of all."""

from minivllm.course import labs
from minivllm.course.asking.exercise import ask, points
from minivllm.course.asking.quiz import QUIZZES as quiz
from minivllm.course.asking.requests import make_request
from minivllm.course.ch00 import exercises as ch00
from minivllm.course.ch01 import exercises as ch01
from minivllm.course.ch02 import exercises as ch02
from minivllm.course.ch03 import exercises as ch03
from minivllm.course.ch04 import exercises as ch04
from minivllm.course.ch04b import exercises as ch04b
from minivllm.course.ch05 import exercises as ch05
from minivllm.course.ch06 import exercises as ch06
from minivllm.course.ch06b import exercises as ch06b
from minivllm.course.ch07 import exercises as ch07
from minivllm.course.ch08 import exercises as ch08
from minivllm.course.ch08b import exercises as ch08b
from minivllm.course.ch09 import exercises as ch09
from minivllm.course.ch10 import exercises as ch10
from minivllm.course.ch11 import exercises as ch11
from minivllm.course.ch12 import exercises as ch12
from minivllm.course.ch13 import exercises as ch13
from minivllm.course.ch13b import exercises as ch13b
from minivllm.course.ch14 import exercises as ch14
from minivllm.course.ch14b import exercises as ch14b
from minivllm.course.ch15 import exercises as ch15
from minivllm.course.ch16 import exercises as ch16
from minivllm.course.ch17 import exercises as ch17
from minivllm.course.ch18 import exercises as ch18
from minivllm.course.ch19 import exercises as ch19
from minivllm.course.ch20 import exercises as ch20
from minivllm.course.ch21 import exercises as ch21
from minivllm.course.ch21b import exercises as ch21b
from minivllm.course.ch22 import exercises as ch22
from minivllm.course.ch24 import exercises as ch24
from minivllm.course.ch26 import exercises as ch26
from minivllm.course.chA1 import exercises as chA1
from minivllm.course.chA2 import exercises as chA2
from minivllm.course.chA3 import exercises as chA3
from minivllm.course.chA4 import exercises as chA4
from minivllm.course.chA5 import exercises as chA5
from minivllm.lab.lesson_table import lesson_table

__all__ = [
    "ask", "ch00", "ch01", "ch02", "ch03", "ch04", "ch04b", "ch05", "ch06", "ch06b", "ch07", "ch08",
    "ch08b", "ch09", "ch10", "ch11", "ch12", "ch13", "ch13b", "ch14", "ch14b", "ch15", "ch16",
    "ch17", "ch18", "ch19", "ch20", "ch21", "ch21b", "ch22", "ch24", "ch26", "chA1", "chA2", "chA3",
    "chA4", "chA5", "labs", "lesson_table", "make_request", "points", "quiz",
]  # fmt: skip
