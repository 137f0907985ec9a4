"""``python -m minivllm.sim replay IN.json --out OUT.json``: a recorded workload, run by us."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Annotated

import typer

from minivllm.sim.replay import replay

app = typer.Typer(help="The real scheduler without a model.", pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Keeps ``replay`` a word of its own while it is the only subcommand."""


@app.command("replay")
def replay_command(
    workload: Annotated[Path, typer.Argument(help="A recording, JSON or gzipped JSON.")],
    out: Annotated[Path, typer.Option(help="Where the same with our steps and results goes.")],
) -> None:
    """Run a workload in the recordings' format and write down every decision."""
    try:
        data = workload.read_bytes()
        text = gzip.decompress(data) if workload.suffix == ".gz" else data
        out.write_text(json.dumps(replay(json.loads(text))))
    except (ValueError, FileNotFoundError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app(prog_name="python -m minivllm.sim")
