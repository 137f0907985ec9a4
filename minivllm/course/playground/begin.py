"""begin: what the page shows before Python has started; it is kept in a file beside the page."""

from __future__ import annotations

from typing import Any

from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.playground.learn import LABS, contents, exercise, lab, quiz
from minivllm.course.playground.presets import POLICY, PRESETS
from minivllm.course.playground.run import run
from minivllm.course.playground.settings import CHOICES, RANGES


def begin() -> dict[str, Any]:
    """Presets, ranges, choices and a policy; what labs, quizzes and exercises ask; the first run.

    Of the exercises those of seed 0; Python draws the others.
    """
    first = PRESETS[0]
    asked = contents()
    kinds = [name for _, names in asked["chapters"] for name in names]
    return {
        "presets": PRESETS,
        "ranges": RANGES,
        "choices": CHOICES,
        "policy": POLICY,
        **asked,
        "tasks": {name: lab(name) for name in LABS},
        "quizzes": {chapter: quiz(chapter) for chapter in QUIZZES},
        "exercises": {name: exercise(name) for name in kinds},
        "first": run(first["workload"], first["engines"], first["axis"]),
    }
