"""The real scheduler and the real block manager, without a model."""

from minivllm.sim.dry_run import dry_run
from minivllm.sim.replay import replay
from minivllm.sim.run import simulate

__all__ = ["dry_run", "replay", "simulate"]
