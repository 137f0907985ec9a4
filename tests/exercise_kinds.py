"""Every kind of exercise there is, by its name, such as ch05.puzzle."""

from minivllm.course.asking.exercise import Seeded
from minivllm.course.chapters import EXERCISES

KINDS = {
    kind.name: kind
    for chapter in EXERCISES.values()
    for kind in vars(chapter).values()
    if isinstance(kind, Seeded)
}
