"""``minivllm bench throughput``: tokens per second on seeded work, beside roofline and peers."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch

from minivllm.bench import ceiling
from minivllm.bench.engines import Engine, MinivllmEngine, peers_asked_for
from minivllm.bench.models import model_directory
from minivllm.bench.report import Report
from minivllm.bench.roofline import Work, work_of
from minivllm.bench.workloads import Round, make_workload
from minivllm.models.model_config import ModelConfig
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
    """Measure and print. All engines load the same files and take turns, run by run.

    Args:
        workload: by its name, see ``minivllm.bench.workloads``.
        model: see ``minivllm.bench.models``.
        num_requests: None for the workload's usual number.
        dtype: of weights, activations, K and V.
        against: names of peers.
        repeats: how often each engine runs; the best counts.
        max_num_seqs, max_num_batched_tokens, enable_prefix_caching: the same for all engines that
            have them; transformers' batches are of ``max_num_seqs`` rows.
        attention_backend: ours.

    Raises:
        ValueError: for an unknown name, a peer that is not installed, a number out of range.
    """
    check(is_int(repeats, 1), "repeats", repeats, "an integer of at least 1")
    peers = peers_asked_for(against)
    with model_directory(model, dtype) as directory:
        config = ModelConfig.from_directory(directory)
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
                "threads": torch.get_num_threads(),
                "clock": f"wall time, best of {repeats} runs after one that warms up",
            },
        )
        options = {
            "max_model_len": longest(rounds),
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "enable_prefix_caching": enable_prefix_caching,
        }
        ours = MinivllmEngine(directory, dtype, **options, attention_backend=attention_backend)
        engines = [ours, *(peer(directory, dtype, **options) for peer in peers)]
        answers, times = take_turns(engines, rounds, repeats)
        device = ceiling.default_device()
        peaks = ceiling.measure(device, getattr(torch, dtype))
        work = work_of(config, rounds, getattr(torch, dtype).itemsize, ours.num_cached_tokens,
                       ceiling.cache_bytes(device))  # fmt: skip
    least = least_seconds(work, peaks)
    report.ceiling({**peaks, "seconds": least}, "measured here, and the roofline of this work")
    results = {engine.name: _figures(rounds, times[engine.name], least) for engine in engines}
    results["minivllm"]["num_cached_tokens"] = ours.num_cached_tokens
    report.table(
        "wall time",
        ("engine", "best s", "median s", "output tokens/s", "share of roofline"),
        [
            (name, r["seconds"], r["median_seconds"], r["output_tokens_per_second"],
             f"{r['share_of_ceiling']:.0%}")
            for name, r in results.items()
        ],
    )  # fmt: skip
    report.finish(results["minivllm"], _against(report, results, answers))


def take_turns(
    engines: list[Engine], rounds: list[Round], repeats: int
) -> tuple[dict[str, list[list[int]]], dict[str, list[float]]]:
    """Run every engine once to warm up, then in turn; answers of the last run, times of all."""
    answers: dict[str, list[list[int]]] = {}
    times: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for engine in engines:
        engine.run(rounds)
    for _ in range(repeats):
        for engine in engines:
            gc.collect()
            begin = time.perf_counter()
            answers[engine.name] = engine.run(rounds)
            times[engine.name].append(time.perf_counter() - begin)
    return answers, times


def longest(rounds: list[Round]) -> int:
    """Tokens of the longest sequence, prompt and answer."""
    return max(len(r.prompt_token_ids) + r.max_tokens for batch in rounds for r in batch)


def least_seconds(work: Work, peaks: dict[str, float]) -> float:
    """The roofline of this work, from measured peaks."""
    return work.least_seconds(peaks["gflop_per_s"] * 1e9, peaks["read_gb_per_s"] * 1e9)


def _size(rounds: list[Round]) -> dict[str, int]:
    requests = [request for batch in rounds for request in batch]
    return {
        "requests": len(requests),
        "rounds": len(rounds),
        "prompt_tokens": sum(len(r.prompt_token_ids) for r in requests),
        "output_tokens": sum(r.n * r.max_tokens for r in requests),
    }


def _figures(rounds: list[Round], times: list[float], least: float) -> dict[str, Any]:
    size, seconds = _size(rounds), min(times)
    return {
        "seconds": seconds,
        "median_seconds": statistics.median(times),
        "all_seconds": times,
        "requests_per_second": size["requests"] / seconds,
        "output_tokens_per_second": size["output_tokens"] / seconds,
        "total_tokens_per_second": (size["prompt_tokens"] + size["output_tokens"]) / seconds,
        "share_of_ceiling": least / seconds,
    }


def _against(
    report: Report, results: dict[str, dict], answers: dict[str, list[list[int]]]
) -> dict[str, Any] | None:
    """Each peer's figures, how many times as fast we are, how many answers are the same."""
    ours, found = answers["minivllm"], {}
    for name in results:
        if name == "minivllm":
            continue
        ratio = results[name]["seconds"] / results["minivllm"]["seconds"]
        same = sum(a == b for a, b in zip(ours, answers[name], strict=True))
        found[name] = {**results[name], "ratio": ratio, "same_answers": same}
        report.note(
            f"{ratio:.2f} x as fast as {name}; {same} of {len(ours)} answers have the same tokens."
        )
    return found or None
