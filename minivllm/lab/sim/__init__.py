"""Simulator: the real scheduler and block manager without a model."""

from minivllm.lab.sim.dry_run import dry_run
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.run import simulate

__all__ = ["dry_run", "replay", "simulate"]
