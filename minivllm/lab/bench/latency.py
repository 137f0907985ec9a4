"""``minivllm bench latency``: how long one batch takes, from the first token to the last."""

from __future__ import annotations

from random import Random
from typing import Annotated, Any

import torch

from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine, Run
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import Backend, Dtype, Model, Repeats, Threads, count
from minivllm.lab.bench.report import Report, memory_note
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import single_round
from minivllm.lab.sim.result import percentiles


def bench_latency(
    batch_size: Annotated[int, count("Requests at once.")] = 1,
    input_len: Annotated[int, count("Tokens of each prompt.")] = 128,
    output_len: Annotated[int, count("Tokens of each answer.", 2)] = 32,
    model: Model = "tiny",
    dtype: Dtype = "float32",
    repeats: Repeats = 5,
    attention_backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Measure and print. Every run is done twice: for one token each, and for all of them.

    The difference is the time of the decode steps after the first token. All prompts fit into one
    step, so that every step after it decodes the whole batch.
    """
    num_steps = output_len - 1
    with bench_model(model, dtype) as (directory, load_format):
        config = bench_config(directory)
        # the same prompts twice: to be answered with one token, and with all of them
        first, whole = (
            single_round(Random(0), batch_size, config.vocab_size, prompt=input_len, answer=n)
            for n in (1, output_len)
        )
        report = Report(
            "latency",
            {
                "model": model,
                "dtype": dtype,
                "batch_size": batch_size,
                "input_len": input_len,
                "output_len": output_len,
                "threads": threads,
                "clock": f"wall time of {repeats} runs after one that warms up",
            },
        )
        engine = BenchEngine(
            directory,
            dtype,
            max_model_len=input_len + output_len,
            max_num_seqs=batch_size,
            max_num_batched_tokens=max(2048, input_len + output_len, batch_size * input_len),
            enable_prefix_caching=False,
            load_format=load_format,
            attention_backend=attention_backend,
        )
        to_first, to_last = engine.repeat(first, repeats), engine.repeat(whole, repeats)
    device = machine.default_device()
    kind = getattr(torch, dtype)
    peaks = machine.measure(device, kind)
    cache_bytes = machine.cache_bytes(device)
    work_first, work = (
        work_of(config, rounds, kind.itemsize, cache_bytes=cache_bytes) for rounds in (first, whole)
    )
    hardware = machine.as_hardware(peaks)
    least = {
        "ttft_s": work_first.least_seconds(hardware),
        "step_s": hardware.least_seconds(work.decode) / num_steps,
        "latency_s": work.least_seconds(hardware),
    }
    report.ceiling({**peaks, **least}, "measured here, and the roofline")
    report.note(
        f"A decode step of this batch reads {work.decode.num_bytes / num_steps / 1e6:,.0f} MB of "
        f"weights, K and V, and computes {work.decode.flops / num_steps / 1e9:,.3g} GFLOP: "
        f"{1e3 * least['step_s']:.3g} ms at least."
    )
    results = _figures(to_first, to_last, num_steps, least=least)
    report.table(
        "milliseconds",
        ("first token", "decode step", "of its roofline", "whole, best", "p50", "p90",
         "of its roofline"),
        [
            (1e3 * results["ttft_s"], 1e3 * results["step_s"], f"{results['share_of_step']:.0%}",
             1e3 * results["latency_s"],
             *(1e3 * results["latency_percentiles_s"][k] for k in ("p50", "p90")),
             f"{results['share_of_ceiling']:.0%}")
        ],
    )  # fmt: skip
    memory_note(report, to_last[-1].memory)
    report.finish(results, None)


def _figures(
    to_first: list[Run], to_last: list[Run], num_steps: int, least: dict[str, float]
) -> dict[str, Any]:
    ttft = min(run.seconds for run in to_first)
    times = [run.seconds for run in to_last]
    latency = min(times)
    step = (latency - ttft) / num_steps
    return {
        "ttft_s": ttft,
        "step_s": step,
        "latency_s": latency,
        "latency_percentiles_s": percentiles(times),
        "share_of_step": least["step_s"] / step,
        "share_of_ceiling": least["latency_s"] / latency,
        **to_last[-1].memory,
    }
