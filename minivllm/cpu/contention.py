"""CPU contention: use fewer threads while other processes need the cores.

After each loop of a step its threads wait for one another. Where another process has one of the
cores, the thread that should be there waits for its turn, for milliseconds, and all others wait for
it. With a thread less, each has a core for itself, and the step takes less time. The system tells
how long threads were ready to run and had no core (Linux: ``/proc/self/task/*/schedstat``).
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable
from pathlib import Path

from minivllm.logger import init_logger

logger = init_logger(__name__)

WINDOW = 0.1  # seconds between two readings
SHARE = 0.5  # of the time, over all threads: a busy process makes 0.6 to 0.9, a server at most 0.4
PATIENCE = 0.5  # seconds until a thread that was given up is tried again
TASKS = "/proc/self/task/*/schedstat"


def seconds_without_core() -> float:
    """Total time that this process's threads have waited for a core; 0.0 if it is not known."""
    waited = 0
    for path in glob.glob(TASKS):
        try:
            waited += int(Path(path).read_text(encoding="utf-8").split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has just ended, an odd system
            continue
    return waited / 1e9


class CPUContention:
    """Number of threads to do without, decided anew a few times a second.

    Args:
        waited: seconds for which threads have waited for a core until now.
        clock: seconds.
    """

    def __init__(
        self,
        waited: Callable[[], float] = seconds_without_core,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._waited = waited
        self._clock = clock
        self._fewer = 0
        self._since = clock()
        self._waited_then = waited()
        self._retry_at = 0.0

    def threads(self, num_threads: int) -> int:
        """Number of threads that a step should have now, of ``num_threads``; at least one."""
        now = self._clock()
        if now - self._since >= WINDOW:
            self._update(now, num_threads)
        return max(1, num_threads - self._fewer)

    def _update(self, now: float, num_threads: int) -> None:
        waited = self._waited()
        before = self._fewer
        share = (waited - self._waited_then) / (now - self._since)
        self._since = now
        self._waited_then = waited
        if share > SHARE:
            self._fewer = min(self._fewer + 1, num_threads - 1)
            self._retry_at = now + PATIENCE
        elif self._fewer and now >= self._retry_at:
            self._fewer -= 1
        if self._fewer > before == 0:
            logger.debug("Another process has a core: %d threads.", num_threads - self._fewer)
