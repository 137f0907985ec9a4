"""Spinning: how long OpenMP's threads look for one another before they sleep.

After each loop a thread waits for the others. Without a bound it looks for milliseconds, on a core
that another one may be waiting for: beside one other busy process two threads are then ten times
slower than one alone. This file is imported with minivllm, before torch is there.
"""

import os
import sys


def _spin_count() -> str:
    """``SPIN_COUNT`` for this processor, as measured with AVX-512 and without it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            return "20000" if "avx512f" in cpuinfo.read(4096) else "5000"
    except OSError:  # not Linux: the bound has no effect
        return "5000"


SPIN_COUNT = _spin_count()
"""How often an OpenMP thread on Linux looks before it sleeps.

A bound costs speed on an idle machine, of which at most a twentieth is given. With AVX-512, 5,000
cost an eighth and 10,000 a twelfth; without it, 5,000 cost nothing."""


def bound_spinning() -> None:
    """Set ``GOMP_SPINCOUNT``, which libgomp reads when torch is loaded. A user's settings win."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def describe_spinning() -> str:
    """Spin setting of this process's threads, for the log."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        if name in os.environ:
            return f"{name}={os.environ[name]}"
    return "unbounded, since torch was imported before minivllm"
