"""``minivllm bench start``: seconds from a process's start to its first token.

The process is a new one each time. First it finds no machine code that numba has kept, then what
the one before it has kept.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

from minivllm.lab.bench.first_token import PROMPT
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.options import Dtype, Model, Repeats, Threads
from minivllm.lab.bench.report import Report

PARTS = "import_s", "load_s", "compile_s", "first_step_s", "total_s"
CACHES = "empty", "filled"


def bench_start(
    model: Model = "embedded",
    dtype: Dtype = "float32",
    repeats: Repeats = 3,
    threads: Threads = None,
) -> None:
    """Measure and print; medians count."""
    workload = {
        "model": model,
        "dtype": dtype,
        "prompt_tokens": len(PROMPT),
        "threads": threads,
        "clock": f"wall time, median of {repeats} processes",
    }
    report = Report("start", workload)
    runs: dict[str, list[dict[str, float]]] = {cache: [] for cache in CACHES}
    with bench_model(model, dtype) as (directory, load_format):
        options = {"model": str(directory), "dtype": dtype, "load_format": load_format}
        for _ in range(repeats):
            with TemporaryDirectory(prefix="minivllm-numba-") as kept:
                for cache in CACHES:
                    runs[cache].append(_in_a_new_process(options, kept, threads))
    results = {
        cache: {part: statistics.median(run[part] for run in found) for part in PARTS}
        | {"all_total_s": [run["total_s"] for run in found]}
        for cache, found in runs.items()
    }
    report.table(
        "seconds until the first token",
        ("NUMBA_CACHE_DIR", "import", "load", "compile", "first step", "in all"),
        [(cache, *(results[cache][part] for part in PARTS)) for cache in CACHES],
    )
    report.finish(results, None)


def _in_a_new_process(options: dict[str, str], kept: str, threads: int) -> dict[str, float]:
    """Start a process that answers with one token. Returns its seconds by ``PARTS``."""
    environment = os.environ | {"NUMBA_CACHE_DIR": kept, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-m", "minivllm.lab.bench.first_token", str(time.time())],
        input=json.dumps(options),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
