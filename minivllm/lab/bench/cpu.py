"""``minivllm bench cpu``: the figures of a CPU, quiet and beside one busy process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import AsyncScheduling, Model, Repeats, Threads
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import make_workload

ROWS = {  # by dtype: workloads, and whether a busy process runs beside them
    "float32": (("w1", False), ("w1", True), ("w2", False), ("w4", False)),
    "bfloat16": (("w1", False), ("w2", False), ("w4", False)),
}
OPTIONS = {  # of the engine
    "max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True, "gpu_memory_utilization": 0.5,
}  # fmt: skip
NARROWED_BY = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"


def bench_cpu(
    model: Model = "tiny",
    repeats: Repeats = 5,
    threads: Threads = None,
    async_scheduling: AsyncScheduling = False,
) -> None:
    """Measure and print; of each row's runs the median counts."""
    overlap = {"async_scheduling": True} if async_scheduling else {}
    workload = {
        "model": model,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "spin_count": os.environ.get("GOMP_SPINCOUNT"),
        "clock": f"wall time, median of {repeats}",
        **overlap,
    }
    report = Report("cpu", workload)
    if narrowed := [f"{name}={os.environ[name]}" for name in NARROWED_BY if name in os.environ]:
        report.note(
            f"Narrowed by {', '.join(narrowed)}: what a CPU without the wider instructions does is "
            "only approached. Each library obeys its own variable."
        )
    results: dict[str, dict[str, Any]] = {}
    for dtype, rows in ROWS.items():
        peaks = machine.measure(torch.device("cpu"), getattr(torch, dtype))
        report.ceiling({f"{dtype} {name}": peak for name, peak in peaks.items()}, "measured here")
        with bench_model(model, dtype) as (directory, load_format):
            config = bench_config(directory)
            engine = BenchEngine(directory, dtype, load_format=load_format, **(OPTIONS | overlap))
            for workload_name, busy in rows:
                rounds = make_workload(workload_name, None, config.vocab_size)
                with _busy_process() if busy else nullcontext():
                    runs = engine.repeat(rounds, repeats)
                work = work_of(
                    config,
                    rounds,
                    getattr(torch, dtype).itemsize,
                    num_cached_tokens=runs[-1].num_cached_tokens,
                    cache_bytes=machine.cache_bytes(torch.device("cpu")),
                )
                seconds = statistics.median(run.seconds for run in runs)
                share = work.least_seconds(machine.as_hardware(peaks)) / seconds
                name = f"{workload_name} {dtype}{' beside a busy process' if busy else ''}"
                results[name] = {
                    "seconds": seconds,
                    "share_of_ceiling": share,
                    "all_seconds": [run.seconds for run in runs],
                }
                report.note(f"{name}: {seconds:.3g} s, {share:.0%} of the roofline")
    report.table(
        "median wall time",
        ("work", "seconds", "of roofline"),
        [
            (name, found["seconds"], f"{found['share_of_ceiling']:.0%}")
            for name, found in results.items()
        ],
    )
    report.finish(results, None)


@contextmanager
def _busy_process() -> Iterator[None]:
    """One that needs a core for itself, like a browser at its worst."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()
