"""Clock: the simulated time in which the real scheduler runs without a model."""

from __future__ import annotations


class Clock:
    """The simulated time, in seconds. Called, it is the clock of a trace.

    Attributes:
        now: the stand-in for the model adds what a step takes.
    """

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait_until(self, moment: float) -> None:
        """Let time pass until a moment, unless it has come already."""
        self.now = max(self.now, moment)
