"""Command line of ``minivllm bench``; each command calls a file beside this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from minivllm.utils.console import exit_on_bad_input, needs_extra
from minivllm.utils.validation import check, is_int

app = typer.Typer(help="Measure, beside the machine's own ceiling.", no_args_is_help=True)

Backend = Annotated[str, typer.Option(help="How layers read the KV cache.")]
Dtype = Annotated[str, typer.Option(help="Of weights, activations, K and V.")]
Model = Annotated[
    str,
    typer.Option(help="tiny, small, qwen3-0.6b, llama-8b, embedded, or a Hugging Face directory."),
]
Repeats = Annotated[int, typer.Option(help="Runs, after one that warms up.")]
Threads = Annotated[int | None, typer.Option(help="Of torch; none: as it chooses.")]


@app.command()
def scheduler(
    num_requests: Annotated[int, typer.Option(help="Sequences that decode.")] = 256,
    num_steps: Annotated[int, typer.Option(help="Of the longest run.")] = 4096,
) -> None:
    """Cost of deciding: µs per request and step, per block hashed, per prompt looked up."""
    options = locals()
    from minivllm.lab.bench.scheduler import bench_scheduler

    _measure(bench_scheduler, **options)


@app.command()
def throughput(
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
    """Tokens per second on seeded work, beside the roofline."""
    options = locals()
    from minivllm.lab.bench.throughput import bench_throughput

    _measure(bench_throughput, **options)


@app.command()
def latency(
    batch_size: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    input_len: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
    model: Model = "tiny",
    dtype: Dtype = "float32",
    repeats: Repeats = 5,
    attention_backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Seconds to the first token and of a decode step of one batch, beside the roofline."""
    options = locals()
    from minivllm.lab.bench.latency import bench_latency

    _measure(bench_latency, **options)


@app.command()
def kernels(
    backends: Annotated[
        list[str],
        typer.Option("--backend", help="By name, repeatable; none: all that can run here."),
    ] = [],  # noqa: B006 (typer copies it)
    batch: Annotated[int, typer.Option(help="Sequences that decode.")] = 16,
    context: Annotated[int, typer.Option(help="Tokens of each.")] = 1024,
    alone: Annotated[int, typer.Option(help="Tokens of a sequence that decodes alone.")] = 16384,
    prefill: Annotated[int, typer.Option(help="Tokens of a new prompt.")] = 512,
    num_heads: Annotated[int, typer.Option(help="Of queries.")] = 32,
    num_kv_heads: Annotated[int, typer.Option(help="Of keys and values.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Numbers per head.")] = 128,
    block_size: Annotated[int, typer.Option(help="Positions per block.")] = 16,
    dtype: Dtype = "float32",
    threads: Threads = None,
) -> None:
    """One layer's attention by backend, beside bandwidth and matrix rate."""
    options = locals()
    from minivllm.lab.bench.kernels import bench_kernels

    _measure(bench_kernels, **options)


@app.command()
def speculation(
    num_speculative_tokens: Annotated[int, typer.Option(help="The most n-gram drafts.")] = 5,
    prompt_lookup_min: Annotated[int, typer.Option(help="The shortest n-gram.")] = 1,
    prompt_lookup_max: Annotated[int, typer.Option(help="The longest n-gram.")] = 3,
    draft_model: Annotated[
        str, typer.Option(help="The directory of a draft model; embedded: the one that ships.")
    ] = "embedded",
    draft_tokens: Annotated[int, typer.Option(help="Its drafts of a step.")] = 3,
    repeats: Repeats = 3,
    threads: Threads = None,
) -> None:
    """Tokens a step and seconds with drafts, by kind of text; what a step of q rows costs."""
    options = locals()
    from minivllm.lab.bench.speculation import bench_speculation

    _measure(bench_speculation, **options)


@app.command()
def structured(
    batch_size: Annotated[int, typer.Option(help="Sequences that decode.")] = 16,
    threads: Threads = None,
) -> None:
    """Grammars of structured outputs: to compile them, a mask's row, and its share of a step."""
    options = locals()
    from minivllm.lab.bench.structured import bench_structured

    _measure(bench_structured, **options)


@app.command()
def cpu(
    model: Model = "tiny",
    repeats: Repeats = 5,
    threads: Threads = None,
) -> None:
    """Seconds of W1, W2 and W4 on a CPU, in float32 and bfloat16, and beside a busy process."""
    options = locals()
    from minivllm.lab.bench.cpu import bench_cpu

    _measure(bench_cpu, **options)


@app.command("all")
def everything(
    output: Annotated[Path | None, typer.Option(help="A file for all results, as JSON.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would run.")] = False,
    threads: Threads = None,
) -> None:
    """Run the benchmarks of this kind of machine, one after the other."""
    from minivllm.lab.bench.everything import bench_all

    with exit_on_bad_input():
        _set_threads(threads)
        failed = bench_all(dry_run, output)
    if failed:
        raise typer.Exit(1)


@app.command(
    context_settings={
        "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
    }
)  # fmt: skip
def serve(context: typer.Context) -> None:
    """TTFT, TPOT, ITL of any OpenAI server under a load; `serve --help` lists the flags."""
    with exit_on_bad_input():
        with needs_extra("serve"):
            from minivllm.lab.bench.serving.command import bench_serve
        figures = bench_serve(context.args)
    if not figures["completed"]:
        raise typer.Exit(1)


def _measure(bench: Callable[..., None], threads: int | None = None, **options) -> None:
    """Run a benchmark with the options of its command, which have the same names."""
    with exit_on_bad_input():
        _set_threads(threads)
        bench(**options)


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        check(is_int(threads, 1), "threads", threads, "an integer of at least 1")
        torch.set_num_threads(threads)
