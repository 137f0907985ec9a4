"""The chapters of the course: the folders ``chNN`` beside this file, in the notebooks' order."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from minivllm.course.asking.chapter import Chapter

_NAMES = sorted(path.parent.name for path in Path(__file__).parent.glob("ch*/exercises.py"))

# By the number of the notebook, such as "05".
CHAPTERS: dict[str, Chapter] = {
    name.removeprefix("ch"): import_module(f"minivllm.course.{name}").CHAPTER for name in _NAMES
}
EXERCISES: dict[str, ModuleType] = {
    name.removeprefix("ch"): import_module(f"minivllm.course.{name}.exercises") for name in _NAMES
}
# Labs by name, in the order of the course.
LABS = {lab.name: lab for chapter in CHAPTERS.values() for lab in chapter.labs}
