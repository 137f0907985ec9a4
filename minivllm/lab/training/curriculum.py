"""Curriculum: stages of the training text, and the learning-rate schedule."""

from dataclasses import dataclass

import numpy as np

from minivllm.embedded.data.corpus import Mixture
from minivllm.embedded.data.tables import TableShape
from minivllm.utils.toml_data import load_toml


@dataclass(frozen=True)
class Stage:
    """A stretch of the training, as a share of the whole."""

    name: str
    share: float
    mixture: Mixture
    batch_tokens: int = 8192


Curve = list[list[float]]
"""(share of the training, value) in order, with straight lines between."""


@dataclass(frozen=True)
class Plan:
    """Stages, the learning-rate factor, and the weight of the attention supervision."""

    stages: tuple[Stage, ...]
    rate: Curve
    pointer_weight: Curve

    def stage_at(self, progress: float) -> Stage:
        """The stage at this share of the training."""
        reached = 0.0
        for stage in self.stages:
            reached += stage.share
            if progress < reached:
                return stage
        return self.stages[-1]


def value_at(curve: Curve, progress: float) -> float:
    """The curve's value at this share of the training; level before and after its ends."""
    shares, values = zip(*curve, strict=True)
    return float(np.interp(progress, shares, values))


def _plan(name: str) -> Plan:
    """A plan of ``curriculum.toml``."""
    data = load_toml(__package__, "curriculum")

    def stage(tables: dict[str, float], skills: str, **described) -> Stage:
        shapes = ((TableShape(**data["shapes"][shape]), part) for shape, part in tables.items())
        return Stage(mixture=Mixture(tuple(shapes), data["skills"][skills]), **described)

    plan = data[name]
    stages = tuple(stage(**described) for described in plan["stages"])
    return Plan(stages, plan["rate"], plan["pointer_weight"])


FULL_PLAN = _plan("full")
QUICK_PLAN = _plan("quick")
DRAFT_PLAN = _plan("draft")
VISION_PLAN = _plan("vision")
