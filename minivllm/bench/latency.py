"""``minivllm bench latency``: how long one batch takes, from the first token to the last."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from minivllm.bench import ceiling
from minivllm.bench.engines import MinivllmEngine, peers_asked_for
from minivllm.bench.models import model_directory
from minivllm.bench.report import Report
from minivllm.bench.roofline import work_of
from minivllm.bench.throughput import least_seconds, take_turns
from minivllm.bench.workloads import BenchRequest
from minivllm.models.model_config import ModelConfig
from minivllm.sim.result import percentiles
from minivllm.validation import check, is_int


def bench_latency(
    batch_size: int,
    input_len: int,
    output_len: int,
    model: str,
    dtype: str,
    against: list[str],
    repeats: int,
    attention_backend: str,
) -> None:
    """Measure and print. Every run is done twice: for one token each, and for all of them.

    So the time to first token and the time per token after it are the same two differences for
    every engine, whatever it lets one see.

    Args:
        batch_size: requests at once.
        input_len, output_len: tokens of each prompt and of each answer.
        model: see ``minivllm.bench.models``.
        dtype: of weights, activations, K and V.
        against: names of peers.
        repeats: how often each engine runs.
        attention_backend: ours.

    Raises:
        ValueError: for an unknown name, a peer that is not installed, a number out of range.
    """
    for name, value, low in (
        ("batch_size", batch_size, 1),
        ("input_len", input_len, 1),
        ("output_len", output_len, 2),
        ("repeats", repeats, 1),
    ):
        check(is_int(value, low), name, value, f"an integer of at least {low}")
    peers = peers_asked_for(against)
    with model_directory(model, dtype) as directory:
        config = ModelConfig.from_directory(directory)
        rng = Random(0)
        prompts = [
            [rng.randrange(10, config.vocab_size) for _ in range(input_len)]
            for _ in range(batch_size)
        ]
        first, whole = ([[BenchRequest(p, n) for p in prompts]] for n in (1, output_len))
        report = Report(
            "latency",
            {
                "model": model,
                "dtype": dtype,
                "batch_size": batch_size,
                "input_len": input_len,
                "output_len": output_len,
                "threads": torch.get_num_threads(),
                "clock": f"wall time of {repeats} runs after one that warms up",
            },
        )
        options = {
            "max_model_len": input_len + output_len,
            "max_num_seqs": batch_size,
            "max_num_batched_tokens": max(2048, input_len + output_len),
            "enable_prefix_caching": False,
        }
        ours = MinivllmEngine(directory, dtype, **options, attention_backend=attention_backend)
        engines = [ours, *(peer(directory, dtype, **options) for peer in peers)]
        _, to_first = take_turns(engines, first, repeats)
        _, to_last = take_turns(engines, whole, repeats)
        device = ceiling.default_device()
        peaks, cache_bytes = (
            ceiling.measure(device, getattr(torch, dtype)),
            ceiling.cache_bytes(device),
        )
        size = getattr(torch, dtype).itemsize
        least = [
            least_seconds(work_of(config, rounds, size, cache_bytes=cache_bytes), peaks)
            for rounds in (first, whole)
        ]
    report.ceiling(
        {**peaks, "ttft_s": least[0], "latency_s": least[1]}, "measured here, and the roofline"
    )
    results = {
        engine.name: _figures(to_first[engine.name], to_last[engine.name], output_len, least)
        for engine in engines
    }
    report.table(
        "milliseconds",
        ("engine", "first token", "per token after", "whole, best", "p50", "p90", "of roofline"),
        [
            (name, *(1e3 * r[k] for k in ("ttft_s", "tpot_s", "latency_s")),
             *(1e3 * r["latency_percentiles_s"][k] for k in ("p50", "p90")),
             f"{r['share_of_ceiling']:.0%}")
            for name, r in results.items()
        ],
    )  # fmt: skip
    mine = results.pop("minivllm")
    against_them = {
        name: {**r, "ratio": r["latency_s"] / mine["latency_s"]} for name, r in results.items()
    }
    for name, r in against_them.items():
        report.note(f"{r['ratio']:.2f} x as fast as {name}.")
    report.finish(mine, against_them or None)


def _figures(
    to_first: list[float], to_last: list[float], output_len: int, least: list[float]
) -> dict[str, Any]:
    ttft, latency = min(to_first), min(to_last)
    return {
        "ttft_s": ttft,
        "tpot_s": (latency - ttft) / (output_len - 1),
        "latency_s": latency,
        "latency_percentiles_s": percentiles(to_last),
        "share_of_ceiling": least[1] / latency,
    }
