"""Report: environment, workload, ceiling and figures of a benchmark, as tables and as JSON.

The lines are for people. Where the output goes into a file or a pipe, a last line is one JSON
object with the keys ``benchmark``, ``environment``, ``workload``, ``ceiling``, ``results`` and
``against``; a terminal would be filled by it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import get_terminal_size, which
from typing import Any

from rich.console import Console
from rich.table import Table

from minivllm.lab.bench.machine import COLUMNS
from minivllm.utils.console import folded, terminal_columns
from minivllm.version import __version__

WIDTH = 120  # columns that a table may fill; a narrower terminal folds lines
_PACKAGES = ("torch", "transformers", "triton", "numba")


def environment() -> dict[str, Any]:
    """Machine and software versions, to reproduce the figures."""
    return {
        "minivllm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    """Name of the GPU, versions of CUDA and of the driver; nothing where torch sees no GPU.

    A benchmark that uses torch has imported it by now, and one that has not (that of the scheduler)
    must not.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    found = {
        "gpu": torch.cuda.get_device_name(),
        "gpu_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30),
        "cuda": torch.version.cuda,
    }
    if which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True)
        found["driver"] = done.stdout.split("\n")[0].strip()
    return found


def cpu_name() -> str:
    """CPU model from /proc/cpuinfo, else from ``platform``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Report:
    """Prints the figures of a benchmark as they come, and all of them as JSON in the end.

    Args:
        benchmark: its name.
        workload: what is done, in words and numbers that repeat it.
    """

    def __init__(self, benchmark: str, workload: dict[str, Any]):
        self._columns = terminal_columns()
        width = max(WIDTH, get_terminal_size().columns)
        self._console = Console(highlight=False, emoji=False, soft_wrap=True, width=width)
        self._json: dict[str, Any] = {
            "benchmark": benchmark,
            "environment": environment(),
            "workload": workload,
            "ceiling": {},
            "results": {},
            "against": None,
        }
        self._console.print(f"[bold]minivllm bench {benchmark}[/]")
        self.facts("environment", self._json["environment"])
        self.facts("workload", workload)

    def facts(self, title: str, facts: dict[str, Any]) -> None:
        """Print names and values on one line."""
        known = ", ".join(f"{k} {_text(v)}" for k, v in facts.items() if v is not None)
        self.note(f"{title}: {known}")

    def ceiling(self, values: dict[str, Any], why: str) -> None:
        """Add what this machine could do at best, measured in this run."""
        self._json["ceiling"] |= values
        self.facts(f"ceiling ({why})", values)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table."""
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        for index, name in enumerate(head):
            table.add_column(name, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(_text, row))
        self._console.print(table)

    def note(self, text: str) -> None:
        """Print a line of text."""
        self._console.print(folded(text, self._columns), markup=False)

    def json(self, results: dict[str, Any], against: dict[str, Any] | None = None) -> str:
        """The last line."""
        return json.dumps(_rounded(self._json | {"results": results, "against": against}))

    def finish(self, results: dict[str, Any], against: dict[str, Any] | None) -> None:
        """Print the last line, unless people read it."""
        if not sys.stdout.isatty():
            self._console.print(self.json(results, against), markup=False)


def _rounded(value: Any) -> Any:
    """Numbers with the eight digits that a clock is good for, in whatever holds them."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def memory_note(report: Report, memory: dict[str, float]) -> None:
    """Print what ``peak_memory`` found."""
    report.facts("peak memory, MiB", {COLUMNS[name]: mib for name, mib in memory.items()})
