"""``minivllm bench ...``: thin; what it does lives in the files beside it."""

from __future__ import annotations

from typing import Annotated

import typer

from minivllm.console import refusing_politely

app = typer.Typer(help="Measure, beside the machine's own ceiling.", no_args_is_help=True)

Against = Annotated[str | None, typer.Option(help="A peer to run in turn, if it is installed.")]


@app.command()
def scheduler(
    num_requests: Annotated[int, typer.Option(help="Sequences that decode.")] = 256,
    num_steps: Annotated[int, typer.Option(help="Of the longest run.")] = 4096,
    against: Against = None,
) -> None:
    """What deciding costs: µs per request and step, per block hashed, per prompt looked up."""
    from minivllm.bench.scheduler import bench_scheduler

    with refusing_politely():
        bench_scheduler(num_requests, num_steps, against)
