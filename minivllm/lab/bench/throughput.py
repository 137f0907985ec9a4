"""``minivllm bench throughput``: tokens per second on seeded work, beside roofline and peers."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from minivllm.lab.bench import machine
from minivllm.lab.bench.engines import engines_for
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.process import Run, engine_processes, take_turns
from minivllm.lab.bench.report import Report, memory_ratio, memory_table
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import Round, make_workload
from minivllm.models.loader import load_config
from minivllm.validation import check, is_int


def bench_throughput(
    workload: str,
    model: str,
    num_requests: int | None,
    dtype: str,
    against: list[str],
    repeats: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    enable_prefix_caching: bool,
    attention_backend: str,
) -> None:
    """Measure and print. Engines run in processes of their own, and take turns, run by run.

    Args:
        workload: by its name, see ``minivllm.lab.bench.workloads``.
        model: see ``minivllm.lab.bench.models``.
        num_requests: None for the workload's usual number.
        dtype: of weights, activations, K and V.
        against: names of peers.
        repeats: how often each engine runs; the best counts.
        max_num_seqs, max_num_batched_tokens, enable_prefix_caching: the same for all engines that
            have them; transformers' batches are of ``max_num_seqs`` rows.
        attention_backend: ours.

    Raises:
        ValueError: for an unknown name, a peer that is not installed, a number out of range.
        ChildProcessError: if an engine fails.
    """
    check(is_int(repeats, 1), "repeats", repeats, "an integer of at least 1")
    engine_classes = engines_for(against)
    with bench_model(model, dtype, bool(against)) as (directory, load_format):
        config = load_config(directory)
        rounds = make_workload(workload, num_requests, config.vocab_size)
        num_threads = torch.get_num_threads()
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
                "threads": num_threads,
                "clock": f"wall time, best of {repeats} runs after one that warms up",
            },
        )
        with engine_processes(
            engine_classes,
            num_threads,
            directory,
            dtype,
            max_model_len=longest(rounds),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            gpu_memory_utilization=0.9 / len(engine_classes),
            load_format=load_format,
            attention_backend=attention_backend,
        ) as engines:
            runs = take_turns(engines, rounds, repeats)
    device = machine.default_device()
    peaks = machine.measure(device, getattr(torch, dtype))
    num_cached = runs["minivllm"][-1].num_cached_tokens
    work = work_of(
        config, rounds, getattr(torch, dtype).itemsize, num_cached, machine.cache_bytes(device)
    )
    least = work.least_seconds(machine.as_hardware(peaks))
    report.ceiling({**peaks, "seconds": least}, "measured here, and the roofline of this work")
    results = {name: _figures(rounds, runs[name], least) for name in runs}
    report.table(
        "wall time",
        ("engine", "best s", "median s", "output tokens/s", "share of roofline"),
        [
            (name, r["seconds"], r["median_seconds"], r["output_tokens_per_second"],
             f"{r['share_of_ceiling']:.0%}")
            for name, r in results.items()
        ],
    )  # fmt: skip
    memory_table(report, results)
    results["minivllm"]["num_cached_tokens"] = num_cached
    report.finish(results["minivllm"], _against(report, results, runs))


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
    size, seconds = _size(rounds), min(times)
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


def _against(
    report: Report, results: dict[str, dict], runs: dict[str, list[Run]]
) -> dict[str, Any] | None:
    """Each peer's figures, how many times as fast we are, how many answers are the same."""
    mine, ours, found = results["minivllm"], runs["minivllm"][-1].answers, {}
    for name in results:
        if name == "minivllm":
            continue
        theirs = results[name]
        same = sum(a == b for a, b in zip(ours, runs[name][-1].answers, strict=True))
        found[name] = {
            **theirs,
            "ratio": theirs["seconds"] / mine["seconds"],
            "same_answers": same,
            **memory_ratio(mine, theirs),
        }
        report.note(
            f"{found[name]['ratio']:.2f} x as fast as {name}; "
            f"{same} of {len(ours)} answers have the same tokens."
        )
    return found or None
