"""begin: what the page shows before Python has started; it is kept in files beside the page."""

from __future__ import annotations

from typing import Any

from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.playground.learn import LABS, contents, exercise, lab, quiz
from minivllm.course.playground.presets import POLICY, PRESETS
from minivllm.course.playground.run import run, steps
from minivllm.course.playground.settings import CHOICES, RANGES


def begin() -> dict[str, Any]:
    """Presets, ranges, choices and a policy, and the first run with its steps."""
    first = PRESETS[0]
    asked = {name: first[name] for name in ("workload", "engines")}
    return {
        "presets": PRESETS,
        "ranges": RANGES,
        "choices": CHOICES,
        "policy": POLICY,
        "first": run(**asked),
        "steps": steps(**asked),
    }


def questions() -> dict[str, Any]:
    """Texts of labs, quizzes and exercises. Of the exercises those of seed 0; Python draws others.

    Most readers only play, so it is a file of its own.
    """
    asked = contents()
    kinds = [name for _, names in asked["chapters"] for name in names]
    return {
        **asked,
        "tasks": {name: lab(name) for name in LABS},
        "quizzes": {chapter: quiz(chapter) for chapter in QUIZZES},
        "exercises": {name: exercise(name) for name in kinds},
    }
