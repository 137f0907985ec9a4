"""How much memory each engine held at most: of its process, and of a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from minivllm.lab.bench.report import Report

COLUMNS = {
    "peak_memory_mib": "process",
    "peak_gpu_allocated_mib": "GPU, allocated",
    "peak_gpu_reserved_mib": "GPU, reserved",
}


def peak_memory() -> dict[str, float]:
    """The most that this process has held so far, in MiB, under the names of ``COLUMNS``.

    What cannot be told here (Windows; no GPU) is left out.
    """
    found = {}
    if sys.platform == "linux":
        # getrusage would count what the parent held when it made this process
        status = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in status if line.startswith("VmHWM"))
        found["peak_memory_mib"] = int(line.split()[1]) / 2**10
    elif sys.platform == "darwin":
        import resource

        found["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["peak_gpu_allocated_mib"] = torch.cuda.max_memory_allocated() / 2**20
        found["peak_gpu_reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return found


def memory_table(report: Report, results: dict[str, dict[str, Any]]) -> None:
    """Print the engines' figures, which hold what ``peak_memory`` found."""
    names = [name for name in COLUMNS if name in results["minivllm"]]
    rows = [(engine, *(found[name] for name in names)) for engine, found in results.items()]
    report.table("peak memory, MiB", ("engine", *(COLUMNS[name] for name in names)), rows)


def memory_ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Our process's peak over a peer's, as an entry of the report; none where it is not known."""
    name = "peak_memory_mib"
    return {"memory_ratio": ours[name] / theirs[name]} if name in ours else {}
