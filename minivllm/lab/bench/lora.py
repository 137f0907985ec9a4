"""``minivllm bench lora``: what adapters cost, in seconds of the same work without them.

Three ways in turn, run after run: an engine that knows no adapters, one that could and uses none,
and the same with its requests spread over adapters and the base model.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.models import bench_config, bench_model
from minivllm.lab.bench.options import Dtype, Model, Repeats, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.throughput import longest
from minivllm.lab.bench.workloads import make_workload
from minivllm.lora.request import LoRARequest
from minivllm.models.checkpoint import LinearPart

WAYS = ("no adapters", "enabled, idle", "adapters")


def bench_lora(
    workload: Annotated[str, typer.Option(help="As of throughput.")] = "w1",
    model: Model = "tiny",
    num_requests: Annotated[int | None, typer.Option(help="None: the workload's own.")] = None,
    dtype: Dtype = "float32",
    num_loras: Annotated[int, count("Adapters; with base rows they take requests in turn.")] = 4,
    rank: Annotated[int, count("Of each adapter.")] = 16,
    base_rows: Annotated[
        bool, typer.Option("--base-rows/--no-base-rows", help="Some requests have no adapter.")
    ] = True,
    repeats: Repeats = 5,
    threads: Threads = None,
) -> None:
    """Measure and print; of each way's runs the median counts."""
    with bench_model(model, dtype) as (directory, load_format), TemporaryDirectory() as made:
        config = bench_config(directory)
        rounds = make_workload(workload, num_requests, config.vocab_size)
        options = {"max_model_len": longest(rounds), "max_num_seqs": 64,
                   "max_num_batched_tokens": 2048, "load_format": load_format}  # fmt: skip
        plain = BenchEngine(directory, dtype, **options)
        options |= {"enable_lora": True, "max_loras": num_loras, "max_lora_rank": rank}
        engine = BenchEngine(directory, dtype, **options)
        linears = engine.llm.llm_engine.worker.model.checkpoint_linears()
        layers = {name: part for name, part in linears.items() if name != "lm_head"}
        adapters: list[LoRARequest | None] = [None] if base_rows else []
        for number in range(1, num_loras + 1):
            path = Path(made) / str(number)
            write_adapter(path, layers, rank, seed=number)
            adapters.append(LoRARequest(f"adapter-{number}", number, str(path)))
        report = Report(
            "lora",
            {
                "name": workload, "model": model, "dtype": dtype, "requests": num_requests,
                "num_loras": num_loras, "rank": rank, "base_rows": base_rows, "threads": threads,
                "clock": f"wall and CPU time, medians of {repeats} runs in turn",
            },
        )  # fmt: skip
        ways = ((plain, (None,)), (engine, (None,)), (engine, adapters))
        seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(1 + repeats):  # the first warms up
            for way, (engine_of_way, loras) in zip(WAYS, ways, strict=True):
                begin = time.process_time()
                wall = engine_of_way.run(rounds, loras).seconds
                if number:
                    seconds[way].append((wall, time.process_time() - begin))
    share = 1 + _added_flops(layers, rank) * (num_loras / len(adapters))
    report.ceiling({"least ratio": share}, "multiplications of linear layers, counted")
    _print(report, seconds)


def write_adapter(directory: Path, layers: Mapping[str, LinearPart], rank: int, seed: int) -> None:
    """Write a random adapter of linear layers as PEFT does, in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (_, layer, _, rows) in layers.items():
        size = len(range(*rows.indices(layer.output_size)))
        for kind, shape in (("A", (rank, layer.input_size)), ("B", (size, rank))):
            weight = 0.02 * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{name}.lora_{kind}.weight"] = weight.bfloat16()
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    targets = sorted({name.rpartition(".")[2] for name in layers})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _added_flops(layers: Mapping[str, LinearPart], rank: int) -> float:
    """Multiplications of an adapter's row, as a share of those of the layers themselves."""
    base = added = 0
    for _, layer, _, rows in layers.values():
        size = len(range(*rows.indices(layer.output_size)))
        base += layer.input_size * size
        added += rank * (layer.input_size + size)
    return added / base


def _print(report: Report, seconds: dict[str, list[tuple[float, float]]]) -> None:
    results: dict[str, Any] = {}
    for way, runs in seconds.items():
        wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        results[way] = {"seconds": wall, "cpu_seconds": cpu, "all_seconds": runs}
    base = results[WAYS[0]]
    for found in results.values():
        for clock in ("seconds", "cpu_seconds"):
            found[f"ratio_{clock}"] = found[clock] / base[clock]
    report.table(
        "medians",
        ("way", "wall s", "x", "CPU s", "x"),
        [
            (way, r["seconds"], r["ratio_seconds"], r["cpu_seconds"], r["ratio_cpu_seconds"])
            for way, r in results.items()
        ],
    )
    report.finish(results, None)
