"""Curriculum: stages of the training text, and the learning-rate schedule."""

from bisect import bisect_right
from dataclasses import dataclass

from minivllm.embedded.data.corpus import Mixture
from minivllm.embedded.data.tables import TableShape


@dataclass(frozen=True)
class Stage:
    """A stretch of the training, as a share of the whole."""

    name: str
    share: float
    mixture: Mixture
    batch_tokens: int = 8192


Curve = tuple[tuple[float, float], ...]
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
    after = bisect_right(curve, progress, key=lambda point: point[0])
    if after in (0, len(curve)):
        return curve[min(after, len(curve) - 1)][1]
    (begin, low), (end, high) = curve[after - 1 : after + 1]
    return low + (high - low) * (progress - begin) / (end - begin)


TINY = TableShape(rows=(2, 4), questions=(8, 14))
SMALL = TableShape(rows=(2, 8), questions=(10, 18))
MIDDLE = TableShape(rows=(5, 12), questions=(12, 24))
LARGE = TableShape(rows=(12, 30), questions=(14, 30), padded_share=0.6)
FULL = TableShape(rows=(24, 30), columns=(6, 8), questions=(20, 40), padded_share=0.7)

FEW = {"capital": 0.10, "capital text": 0.05, "small talk": 0.05, "prose": 0.05, "essay": 0.03,
       "tool": 0.05, "json": 0.07}  # fmt: skip
MORE = {"capital": 0.35, "capital text": 0.30, "small talk": 0.40, "prose": 0.50, "essay": 0.12,
        "tool": 0.14, "json": 0.30}  # fmt: skip
LAST = {"capital": 0.50, "capital text": 0.35, "small talk": 0.30, "prose": 0.35, "essay": 0.06,
        "tool": 0.18, "json": 0.60}  # fmt: skip

MIXED = Mixture(((SMALL, 0.17), (MIDDLE, 0.16), (LARGE, 0.13), (FULL, 0.06)), LAST)
MOSTLY_LARGE = Mixture(((SMALL, 0.12), (MIDDLE, 0.11), (LARGE, 0.13), (FULL, 0.14)), LAST)

FULL_PLAN = Plan(
    stages=(
        Stage("2-4 rows", 0.13, Mixture(((TINY, 0.8),), FEW), 4096),
        Stage("2-8 rows", 0.14, Mixture(((TINY, 0.2), (SMALL, 0.5)), FEW), 6144),
        Stage("2-12 rows", 0.21, Mixture(((SMALL, 0.35), (MIDDLE, 0.3)), MORE)),
        Stage("2-30 rows", 0.27, MIXED),
        Stage("mostly 12-30 rows", 0.25, MOSTLY_LARGE),
    ),
    # Fast while circuits appear, slower while they sharpen, then to zero.
    rate=((0.0, 0.0), (0.01, 1.0), (0.33, 1.0), (0.34, 0.3), (0.55, 0.3), (1.0, 0.0)),
    # The supervision matters most while the circuits form.
    pointer_weight=((0.0, 1.0), (0.5, 0.4)),
)

QUICK_PLAN = Plan(
    (Stage("quick", 1.0, Mixture(((TableShape(questions=(4, 8), invented=0.0), 1.0),)), 2048),),
    rate=((0.0, 0.0), (0.01, 1.0), (0.33, 1.0), (0.34, 0.3), (0.55, 0.3), (1.0, 0.0)),
    pointer_weight=((0.0, 1.0), (0.5, 0.4)),
)
"""A plan for seconds instead of an hour, which shows that learning works."""
