"""The plan of the training: which text comes when, and how fast it is learnt."""

from dataclasses import dataclass

from minivllm.models.embedded.corpus import Mixture
from minivllm.models.embedded.tables import TableShape


@dataclass(frozen=True)
class Stage:
    """A stretch of the training, as a share of the whole."""

    name: str
    share: float
    mixture: Mixture
    batch_tokens: int = 8192


TINY = TableShape(rows=(2, 4), questions=(8, 14))
SMALL = TableShape(rows=(2, 8), questions=(10, 18))
MIDDLE = TableShape(rows=(5, 12), questions=(12, 24))
LARGE = TableShape(rows=(12, 30), questions=(14, 30), padded_share=0.6)
FULL = TableShape(rows=(24, 30), columns=(7, 8), questions=(20, 40), padded_share=0.8)

FEW = {"capital": 0.10, "capital text": 0.05, "small talk": 0.05, "prose": 0.05, "essay": 0.03,
       "tool": 0.05, "json": 0.07}  # fmt: skip
MORE = {"capital": 0.35, "capital text": 0.30, "small talk": 0.40, "prose": 0.50, "essay": 0.12,
        "tool": 0.14, "json": 0.30}  # fmt: skip

LAST = {"capital": 0.60, "capital text": 0.40, "small talk": 0.30, "prose": 0.35, "essay": 0.08,
        "tool": 0.14, "json": 0.50}  # fmt: skip

STAGES = (
    Stage("2-4 rows", 0.13, Mixture(((TINY, 0.8),), FEW), 4096),
    Stage("2-8 rows", 0.14, Mixture(((TINY, 0.2), (SMALL, 0.5)), FEW), 6144),
    Stage("2-12 rows", 0.21, Mixture(((SMALL, 0.35), (MIDDLE, 0.3)), MORE)),
    Stage("2-30 rows", 0.52, Mixture(((SMALL, 0.15), (MIDDLE, 0.15), (LARGE, 0.1), (FULL, 0.06)),
                                     LAST)),
)  # fmt: skip

WARM_UP = 0.01
FAST_UNTIL = 0.33
SLOW_RATE = 0.3
DECAY_FROM = 0.55

QUICK = (Stage("quick", 1.0, Mixture(((TableShape(questions=(4, 8), invented=0.0), 1.0),)), 2048),)
"""A plan for seconds instead of an hour, which shows that learning works."""


def stage_at(progress: float, stages: tuple[Stage, ...] = STAGES) -> Stage:
    """The stage at this share of the training."""
    reached = 0.0
    for stage in stages:
        reached += stage.share
        if progress < reached:
            return stage
    return stages[-1]


def rate_at(progress: float) -> float:
    """Learning-rate factor: fast while circuits appear, slower while they sharpen, then to zero."""
    if progress < FAST_UNTIL:
        return min(1.0, progress / WARM_UP)
    return SLOW_RATE * max(0.0, min(1.0, (1.0 - progress) / (1.0 - DECAY_FROM)))


def pointer_weight_at(progress: float) -> float:
    """Weight of the attention supervision, which matters most while the circuits form."""
    return max(0.4, 1.0 - 1.2 * progress)
