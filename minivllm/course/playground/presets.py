"""Presets: requests and engines with a lesson, and the policy that the editor begins with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minivllm.course.asking.texts import one_line
from minivllm.course.playground.settings import EngineSettings, Workload
from minivllm.lab.translation import translated
from minivllm.utils.toml_data import load_toml

POLICY = '''\
from minivllm.scheduling.policies import SchedulingPolicy


class ShortestFirst(SchedulingPolicy):
    """Shortest answers are admitted first."""

    def key(self, request):
        return request.sampling_params.max_tokens

    def victim(self, running):  # gives its blocks
        return running[-1]

    def may_admit(self, running):  # in each step
        return True
'''


def _whole(preset: dict[str, Any]) -> dict[str, Any]:
    """A preset with every setting, also those that it leaves as they are."""
    title = preset["title"]
    lesson = one_line(preset["lesson"])
    workload = Workload(**preset["workload"])
    engines = preset["engines"]
    return {
        **preset,
        "title": translated(title),
        "lesson": translated(lesson),
        "numbers": [translated(number) for number in preset["numbers"]],
        "workload": asdict(workload),
        "engines": {name: asdict(EngineSettings(**each)) for name, each in engines.items()},
    }


PRESETS = [_whole(preset) for preset in load_toml(__package__, "presets")["presets"]]
