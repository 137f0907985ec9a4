"""``minivllm bench ranks``: the same work by one process and by several ranks, in turn.

On one machine the ranks share its cores, so at best they take as long as one process: what is
measured is the price of dividing. Beside it, the sum of a tensor over two processes.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from minivllm.distributed.shm_group import ShmGroup, shared_bytes
from minivllm.distributed.torch_group import TorchGroup
from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine, check_options
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import Dtype, Model, Repeats, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.throughput import longest
from minivllm.lab.bench.workloads import make_workload

_PATIENCE = 120.0  # seconds until the processes have summed; one may wait for another that failed
_SUMS = 2000  # all-reduces that are timed
_ROWS = 64  # of the tensor that is summed


def bench_ranks(
    workload: Annotated[str, typer.Option(help="As of throughput.")] = "w1",
    model: Model = "tiny",
    num_requests: Annotated[int | None, typer.Option(help="None: the workload's own.")] = None,
    dtype: Dtype = "float32",
    tensor_parallel_size: Annotated[int, count("Ranks that share each layer.")] = 2,
    pipeline_parallel_size: Annotated[int, count("Stages, in another engine.")] = 2,
    repeats: Repeats = 5,
    threads: Threads = None,
) -> None:
    """Measure and print; engines take turns, run after run, and each one's median counts."""
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    sizes: dict[str, dict[str, int]] = {
        "one process": {},
        f"TP {tp}": {"tensor_parallel_size": tp},
        f"PP {pp}": {"pipeline_parallel_size": pp},
    }
    with bench_model(model, dtype) as (directory, load_format):
        config = bench_config(directory)
        rounds = make_workload(workload, num_requests, config.vocab_size)
        options = {"max_model_len": longest(rounds), "max_num_seqs": 64,
                   "max_num_batched_tokens": 2048, "load_format": load_format}  # fmt: skip
        for ranks in sizes.values():
            check_options(directory, dtype, **ranks, **options)
        report = Report(
            "ranks",
            {
                "name": workload, "model": model, "dtype": dtype, "requests": num_requests,
                "threads": threads, "clock": f"wall time, medians of {repeats} runs in turn",
            },
        )  # fmt: skip
        peaks = machine.measure(torch.device("cpu"), getattr(torch, dtype))
        sums = time_all_reduce(2, (_ROWS, config.hidden_size))
        ready: dict[str, float] = {}
        engines: dict[str, BenchEngine] = {}
        for name, ranks in sizes.items():
            begin = time.perf_counter()
            engines[name] = BenchEngine(directory, dtype, **ranks, **options)
            ready[name] = time.perf_counter() - begin
        runs: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(1 + repeats):  # the first warms up
            for name, engine in engines.items():
                seconds = engine.run(rounds).seconds
                if number:
                    runs[name].append(seconds)
        for engine in engines.values():
            engine.llm.shutdown()
    num_bytes = _ROWS * config.hidden_size * 4
    # each rank writes its own and reads both
    least = 3 * num_bytes / machine.as_hardware(peaks).bytes_per_s
    report.ceiling({"least ratio": 1.0, "least all-reduce s": least}, "shared cores; bandwidth")
    _print(report, runs, ready, sums=sums, shape=f"[{_ROWS}, {config.hidden_size}]")


def time_all_reduce(size: int, shape: tuple[int, int]) -> dict[str, float]:
    """Median seconds of an all-reduce of float32 numbers, through memory and through gloo.

    Args:
        size: number of processes, with a thread each.
        shape: of the tensor that they sum.
    """
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    memory = context.RawArray("b", shared_bytes(size))
    with TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        start = size, shape, store, memory, results
        processes = [context.Process(target=_sum, args=(rank, *start)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE)
            process.kill()
    if any(process.exitcode != 0 for process in processes):
        raise RuntimeError("a process that measures all-reduces has failed.")
    return results.get()


def _sum(
    rank: int, size: int, shape: tuple[int, int], store: str, memory: Any, results: Any
) -> None:
    """Process main: time sums with the other processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    ranks = list(range(size))
    found = {}
    for name, group in (
        ("shared memory", ShmGroup(ranks, rank, memory)),
        ("gloo", TorchGroup(ranks, rank)),
    ):
        x = torch.zeros(shape)
        seconds = []
        for _ in range(_SUMS):
            begin = time.perf_counter()
            group.all_reduce(x)
            seconds.append(time.perf_counter() - begin)
        found[name] = statistics.median(seconds)
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()  # its threads would not survive the end of the process


def _print(
    report: Report,
    runs: dict[str, list[float]],
    ready: dict[str, float],
    sums: dict[str, float],
    shape: str,
) -> None:
    medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
    base = next(iter(medians.values()))
    results: dict[str, Any] = {
        name: {
            "seconds": seconds,
            "ratio": seconds / base,
            "ready_s": ready[name],
            "all_seconds": runs[name],
        }
        for name, seconds in medians.items()
    }
    report.table(
        "medians",
        ("ranks", "seconds", "x", "ready after s"),
        [(name, r["seconds"], r["ratio"], r["ready_s"]) for name, r in results.items()],
    )
    report.table(
        f"all-reduce of {shape}, two processes",
        ("through", "ms"),
        [(name, 1e3 * seconds) for name, seconds in sums.items()],
    )
    report.finish(results | {"all_reduce_s": sums}, None)
