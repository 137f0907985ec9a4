"""How the benchmarks measure time.

Bookkeeping is measured in the process's own CPU time, so that a busy neighbour costs it little.
Of several repetitions the best counts: whatever disturbs a run only ever makes it slower.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU time of one call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def best_cpu_seconds(function: Callable[[], object], repeats: int = 7) -> float:
    """The least CPU time of several calls, garbage collected before them and not between."""
    gc.collect()
    return min(cpu_seconds(function) for _ in range(repeats))
