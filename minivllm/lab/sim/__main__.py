"""``python -m minivllm.sim``: ``replay``, ``run``, ``waste`` and ``sharing``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from minivllm.lab.contiguous.manager import ALLOCATORS
from minivllm.lab.sim.cost import HARDWARE, MODELS
from minivllm.lab.sim.machines import NODES
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.report import as_dict, describe, describe_sharing, describe_waste
from minivllm.lab.sim.run import MANAGERS, simulate
from minivllm.lab.sim.sharing import measure_sharing
from minivllm.lab.sim.waste import measure_waste
from minivllm.lab.sim.workloads import WORKLOADS
from minivllm.scheduling.policies import POLICIES
from minivllm.utils.console import App, exit_on_bad_input
from minivllm.utils.validation import check

app = App(help="The real scheduler without a model.", pretty_exceptions_enable=False)


@app.command("replay")
def replay_command(
    workload: Annotated[Path, typer.Argument(help="A recording, JSON or gzipped JSON.")],
    out: Annotated[Path, typer.Option(help="Where the same with our steps and results goes.")],
) -> None:
    """Run a workload in the recordings' format and write down every decision."""
    with exit_on_bad_input():
        out.write_text(json.dumps(replay(_read_json(workload))), encoding="utf-8")


def _read_json(path: Path) -> Any:
    data = path.read_bytes()
    try:
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (ValueError, RecursionError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def _one_of(names) -> str:
    return f"One of {', '.join(names)}."


Seed = Annotated[int, typer.Option(help="Of the workload.")]
Allocator = Annotated[str, typer.Option(help=f"Of a contiguous manager. {_one_of(ALLOCATORS)}")]


@app.command("run")
def run_command(
    workload: Annotated[str, typer.Option(help=_one_of(WORKLOADS))] = "sharegpt",
    requests: Annotated[int, typer.Option(help="How many.")] = 1000,
    rate: Annotated[float, typer.Option(help="Arrivals per second; inf: all at once.")] = 5.0,
    seed: Seed = 0,
    hardware: Annotated[str, typer.Option(help=_one_of([*HARDWARE, *NODES]))] = "a100",
    model: Annotated[str, typer.Option(help=_one_of(MODELS))] = "llama-8b",
    manager: Annotated[str, typer.Option(help=_one_of(MANAGERS))] = "paged",
    allocator: Allocator = "buddy",
    policy: Annotated[str, typer.Option(help=_one_of(POLICIES))] = "fcfs",
    num_blocks: Annotated[
        int | None, typer.Option(help="The pool, null block included; none: what fits.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Positions per block.")] = 16,
    gpu_memory_utilization: Annotated[float, typer.Option(help="For weights and K/V.")] = 0.9,
    max_model_len: Annotated[
        int | None, typer.Option(help="The longest sequence; none: what the model knows.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens per step.")] = 4096,
    enable_chunked_prefill: Annotated[
        bool, typer.Option("--chunked-prefill/--no-chunked-prefill", help="Split long prompts.")
    ] = True,
    enable_prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse equal prefixes.")
    ] = True,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Most requests that the client has under way.")
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Ranks that share each layer.")
    ] = 1,
    pipeline_parallel_size: Annotated[
        int, typer.Option("--pipeline-parallel-size", "-pp", help="Stages of layers.")
    ] = 1,
    data_parallel_size: Annotated[
        int, typer.Option("--data-parallel-size", "-dp", help="Engines with the whole model.")
    ] = 1,
    async_scheduling: Annotated[
        bool,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="Plan a step while the one before runs on the device.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers in a last line.")] = False,
) -> None:
    """Serve a workload in simulated time and say how that went."""
    options = dict(locals())
    for name in ("workload", "requests", "rate", "seed", "as_json"):
        del options[name]
    with exit_on_bad_input():
        names = ", ".join(map(repr, WORKLOADS))
        check(workload in WORKLOADS, "workload", workload, f"one of {names}")
        result = simulate(WORKLOADS[workload](requests, rate, seed), **options)
        sizes = f"TP {tensor_parallel_size}, PP {pipeline_parallel_size}, DP {data_parallel_size}"
        cluster = "" if sizes == "TP 1, PP 1, DP 1" else f", {sizes}"
        overlap = ", asynchronous scheduling" if async_scheduling else ""
        print(f"{workload} on {model}, {hardware}, {manager}, {policy}{cluster}{overlap}")
        print(describe(result))
        if as_json:
            print(json.dumps(as_dict(result)))


@app.command("waste")
def waste_command(
    requests: Annotated[int, typer.Option(help="How many, on each manager.")] = 500,
    seed: Seed = 0,
    allocator: Allocator = "buddy",
) -> None:
    """Use of KV memory without paging and with it, beside the paper's figure 2."""
    with exit_on_bad_input():
        print(describe_waste(measure_waste(requests, seed, allocator)))


@app.command("sharing")
def sharing_command(
    requests: Annotated[int, typer.Option(help="How many, of each workload.")] = 100,
    seed: Seed = 0,
) -> None:
    """Blocks that several answers to one prompt save, beside the paper's figure 15."""
    with exit_on_bad_input():
        print(describe_sharing(measure_sharing(requests, seed)))


if __name__ == "__main__":
    app(prog_name="python -m minivllm.sim")
