"""begin: what the page shows before Python has started; it is kept in a file beside the page."""

from __future__ import annotations

from typing import Any

from minivllm.course.playground.learn import contents
from minivllm.course.playground.presets import POLICY, PRESETS
from minivllm.course.playground.run import run
from minivllm.course.playground.settings import CHOICES, RANGES


def begin() -> dict[str, Any]:
    """Presets, ranges, choices, a policy, labs and exercises; and the first preset's run."""
    first = PRESETS[0]
    return {
        "presets": PRESETS,
        "ranges": RANGES,
        "choices": CHOICES,
        "policy": POLICY,
        **contents(),
        "first": run(first["workload"], first["engines"], first["axis"]),
    }
