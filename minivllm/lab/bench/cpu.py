"""``minivllm bench cpu``: the figures of a CPU, quiet and beside one busy process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from minivllm.cpu.spin import describe_spinning
from minivllm.lab.bench import machine
from minivllm.lab.bench.engines import engines_for
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.process import EngineProcess, Run, engine_processes, take_turns
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import Round, make_workload
from minivllm.models.loader import load_config
from minivllm.models.model_config import ModelConfig
from minivllm.validation import check, is_int

ROWS = {  # by dtype: workloads, and whether a busy process runs beside them
    "float32": (("w1", False), ("w1", True), ("w2", False), ("w4", False)),
    "bfloat16": (("w1", False), ("w2", False), ("w4", False)),
}
MAX_MODEL_LEN = 2048
NARROWED_BY = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"


def bench_cpu(against: list[str], peer_python: Path | None, model: str, repeats: int) -> None:
    """Measure and print. Engines run in processes of their own, and take turns, run by run.

    Args:
        against: names of peers.
        peer_python: the interpreter that has them; None: this one.
        model: see ``minivllm.lab.bench.models``.
        repeats: how often each engine runs each row; the median counts.

    Raises:
        ValueError: for an unknown name, a peer that is not installed, a number out of range.
        ChildProcessError: if an engine fails.
    """
    check(is_int(repeats, 1), "repeats", repeats, "an integer of at least 1")
    engine_classes = engines_for(against, peer_python)
    report = Report("cpu", {"model": model, **_cpu(), "clock": f"wall time, median of {repeats}"})
    if narrowed := [f"{name}={os.environ[name]}" for name in NARROWED_BY if name in os.environ]:
        report.note(
            f"Narrowed by {', '.join(narrowed)}: what a CPU without the wider instructions does is "
            "only approached. Each library obeys its own variable, and a peer's kernels none."
        )
    results: dict[str, dict[str, Any]] = {}
    for dtype, rows in ROWS.items():
        peaks = machine.measure(torch.device("cpu"), getattr(torch, dtype))
        report.ceiling({f"{dtype} {name}": peak for name, peak in peaks.items()}, "measured here")
        with (
            bench_model(model, dtype, bool(against)) as (directory, load_format),
            engine_processes(
                engine_classes,
                torch.get_num_threads(),
                directory,
                dtype,
                peer_python=peer_python,
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=64,
                max_num_batched_tokens=2048,
                enable_prefix_caching=True,
                gpu_memory_utilization=0.5,
                load_format=load_format,
            ) as engines,
        ):
            config = load_config(directory)
            for workload, busy in rows:
                rounds = make_workload(workload, None, config.vocab_size)
                runs = _measure(engines, rounds, repeats, busy)
                least = _least_seconds(config, rounds, runs["minivllm"][-1], dtype, peaks)
                name = f"{workload} {dtype}{' beside a busy process' if busy else ''}"
                results[name] = _figures(runs, least)
                report.note(f"{name}: {_sentence(results[name])}")
    _table(report, results)
    report.finish(results, None)


def _cpu() -> dict[str, Any]:
    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "spinning": describe_spinning(),
    }


def _measure(
    engines: list[EngineProcess], rounds: list[Round], repeats: int, busy: bool
) -> dict[str, list[Run]]:
    if not busy:
        return take_turns(engines, rounds, repeats)
    with _busy_process():
        return take_turns(engines, rounds, repeats)


@contextmanager
def _busy_process() -> Iterator[None]:
    """One that needs a core for itself, like a browser at its worst."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _least_seconds(
    config: ModelConfig, rounds: list[Round], run: Run, dtype: str, peaks: dict[str, float]
) -> float:
    work = work_of(
        config,
        rounds,
        getattr(torch, dtype).itemsize,
        run.num_cached_tokens,
        machine.cache_bytes(torch.device("cpu")),
    )
    return work.least_seconds(machine.as_hardware(peaks))


def _figures(runs: dict[str, list[Run]], least: float) -> dict[str, Any]:
    """Medians, our share of the roofline, and each peer's time over ours."""
    seconds = {name: statistics.median(run.seconds for run in runs[name]) for name in runs}
    ours = seconds["minivllm"]
    answers = runs["minivllm"][-1].answers
    return {
        "seconds": ours,
        "share_of_ceiling": least / ours,
        "all_seconds": {name: [run.seconds for run in runs[name]] for name in runs},
        "against": {
            name: {
                "seconds": theirs,
                "ratio": theirs / ours,
                "same_answers": sum(
                    a == b for a, b in zip(answers, runs[name][-1].answers, strict=True)
                ),
                "answers": len(answers),
            }
            for name, theirs in seconds.items()
            if name != "minivllm"
        },
    }


def _sentence(figures: dict[str, Any]) -> str:
    peers = "".join(
        f"; {name} {peer['seconds']:.3g} s: {peer['ratio']:.2f} x as fast, "
        f"{peer['same_answers']} of {peer['answers']} answers the same"
        for name, peer in figures["against"].items()
    )
    return f"{figures['seconds']:.3g} s, {figures['share_of_ceiling']:.0%} of the roofline{peers}"


def _table(report: Report, results: dict[str, dict[str, Any]]) -> None:
    peers = list(next(iter(results.values()))["against"])
    report.table(
        "median wall time",
        (
            "work",
            "minivllm s",
            "of roofline",
            *(f"{p} s" for p in peers),
            *("ratio" for _ in peers),
        ),
        [
            (
                name,
                found["seconds"],
                f"{found['share_of_ceiling']:.0%}",
                *(found["against"][p]["seconds"] for p in peers),
                *(found["against"][p]["ratio"] for p in peers),
            )
            for name, found in results.items()
        ],
    )
