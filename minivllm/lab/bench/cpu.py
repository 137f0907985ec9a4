"""``minivllm bench cpu``: the figures of a CPU, quiet and beside one busy process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated, Any

import torch
import typer

from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine, Run
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import AsyncScheduling, Model, Repeats, Threads
from minivllm.lab.bench.peers import Peer, PeerError, places_of
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import Round, make_workload

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
    against: Annotated[str, typer.Option(help="Some of openvino,llama,vllm, in turn.")] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="ENGINE=PYTHON, for openvino and llama ENGINE=PYTHON,MODEL."),
    ] = None,
) -> None:
    """Measure and print; of each row's runs the median counts, ours and the peers' in turn."""
    places, left_out = places_of(against, peer or [])
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
    for line in left_out:
        report.note(line)
    results: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    for dtype, rows in ROWS.items():
        peaks = machine.measure(torch.device("cpu"), getattr(torch, dtype))
        report.ceiling({f"{dtype} {name}": peak for name, peak in peaks.items()}, "measured here")
        with bench_model(model, dtype) as (directory, load_format), ExitStack() as stack:
            config = bench_config(directory)
            engine = BenchEngine(directory, dtype, load_format=load_format, **(OPTIONS | overlap))
            options = OPTIONS | {
                "model": str(directory), "dtype": dtype, "load_format": load_format,
                "threads": threads,
            }  # fmt: skip
            peers = []
            for place in places:
                try:
                    loaded = Peer(place, options)
                except PeerError as error:
                    report.note(f"{error}: left out of {dtype}.")
                    continue
                stack.callback(loaded.close)
                peers.append(loaded)
            for workload_name, busy in rows:
                rounds = make_workload(workload_name, None, config.vocab_size)
                with _busy_process() if busy else nullcontext():
                    runs, theirs = _in_turn(engine, peers, rounds, repeats, report)
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
                for other, all_seconds in theirs.items():
                    median = statistics.median(all_seconds)
                    ratios[f"{name}, {other}"] = {
                        "seconds": median,
                        "ratio": median / seconds,
                        "share_of_ceiling": share * seconds / median,
                        "all_seconds": all_seconds,
                    }
    report.table(
        "median wall time",
        ("work", "seconds", "of roofline"),
        [
            (name, found["seconds"], f"{found['share_of_ceiling']:.0%}")
            for name, found in results.items()
        ],
    )
    if ratios:
        report.table(
            "other engines on the same requests, in turn; ratio above 1: ours is faster",
            ("work, engine", "seconds", "ratio", "of roofline"),
            [
                (name, found["seconds"], found["ratio"], f"{found['share_of_ceiling']:.0%}")
                for name, found in ratios.items()
            ],
        )
    report.finish(results, ratios or None)


def _in_turn(
    engine: BenchEngine, peers: list[Peer], rounds: list[Round], repeats: int, report: Report
) -> tuple[list[Run], dict[str, list[float]]]:
    """Runs of ours, and seconds of each peer's: all warm up, then each has a turn for each repeat.

    A peer that fails is taken out of the list.
    """
    runs = []
    theirs: dict[str, list[float]] = {peer.engine: [] for peer in peers}
    for _ in range(1 + repeats):
        runs.append(engine.run(rounds))
        for peer in list(peers):
            try:
                theirs[peer.engine].append(peer.run(rounds))
            except PeerError as error:
                report.note(f"{error}: left out from here on.")
                peers.remove(peer)
                del theirs[peer.engine]
    return runs[1:], {name: seconds[1:] for name, seconds in theirs.items()}


@contextmanager
def _busy_process() -> Iterator[None]:
    """One that needs a core for itself, like a browser at its worst."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()
