"""``minivllm bench throughput``: tokens per second on seeded work, beside the roofline."""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import torch
import typer

from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine, Run
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import Backend, Dtype, Model, Repeats, Threads
from minivllm.lab.bench.report import Report, memory_note
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import Round, make_workload


def bench_throughput(
    workload: Annotated[
        str,
        typer.Option(help="nano, w1, w1-short, w2, w4, shared-prefix, multi-turn or n-samples."),
    ] = "w1",
    model: Model = "tiny",
    num_requests: Annotated[int | None, typer.Option(help="None: the workload's own.")] = None,
    dtype: Dtype = "float32",
    repeats: Repeats = 3,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences at once.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens per step.")] = 2048,
    enable_prefix_caching: Annotated[
        bool,
        typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse equal prefixes."),
    ] = True,
    attention_backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Measure and print; the best of the runs counts."""
    with bench_model(model, dtype) as (directory, load_format):
        config = bench_config(directory)
        rounds = make_workload(workload, num_requests, config.vocab_size)
        report = Report(
            "throughput",
            {
                "name": workload,
                "model": model,
                "dtype": dtype,
                **_size(rounds),
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "prefix_caching": enable_prefix_caching,
                "threads": threads,
                "clock": f"wall time, best of {repeats} runs after one that warms up",
            },
        )
        engine = BenchEngine(
            directory,
            dtype,
            max_model_len=longest(rounds),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            load_format=load_format,
            attention_backend=attention_backend,
        )
        runs = engine.repeat(rounds, repeats)
    device = machine.default_device()
    peaks = machine.measure(device, getattr(torch, dtype))
    num_cached = runs[-1].num_cached_tokens
    work = work_of(
        config,
        rounds,
        getattr(torch, dtype).itemsize,
        num_cached_tokens=num_cached,
        cache_bytes=machine.cache_bytes(device),
    )
    least = work.least_seconds(machine.as_hardware(peaks))
    report.ceiling({**peaks, "seconds": least}, "measured here, and the roofline of this work")
    results = _figures(rounds, runs, least) | {"num_cached_tokens": num_cached}
    report.table(
        "wall time",
        ("best s", "median s", "output tokens/s", "share of roofline"),
        [
            (results["seconds"], results["median_seconds"], results["output_tokens_per_second"],
             f"{results['share_of_ceiling']:.0%}")
        ],
    )  # fmt: skip
    memory_note(report, runs[-1].memory)
    report.finish(results, None)


def longest(rounds: list[Round]) -> int:
    """Tokens of the longest sequence, prompt and answer."""
    return max(len(r.prompt_token_ids) + r.max_tokens for batch in rounds for r in batch)


def _size(rounds: list[Round]) -> dict[str, int]:
    requests = [request for batch in rounds for request in batch]
    return {
        "requests": len(requests),
        "rounds": len(rounds),
        "prompt_tokens": sum(len(r.prompt_token_ids) for r in requests),
        "output_tokens": sum(r.n * r.max_tokens for r in requests),
    }


def _figures(rounds: list[Round], runs: list[Run], least: float) -> dict[str, Any]:
    times = [run.seconds for run in runs]
    size = _size(rounds)
    seconds = min(times)
    return {
        "seconds": seconds,
        "median_seconds": statistics.median(times),
        "all_seconds": times,
        "requests_per_second": size["requests"] / seconds,
        "output_tokens_per_second": size["output_tokens"] / seconds,
        "total_tokens_per_second": (size["prompt_tokens"] + size["output_tokens"]) / seconds,
        "share_of_ceiling": least / seconds,
        **runs[-1].memory,
    }
