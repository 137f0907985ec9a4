"""``minivllm bench all``: the benchmarks of this kind of machine, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from minivllm.lab.bench import machine
from minivllm.lab.bench.options import Threads
from minivllm.lab.bench.report import Report
from minivllm.utils.toml_data import load_toml

COMMANDS = load_toml(__package__, "everything")  # by device: arguments of ``minivllm bench``


def bench_all(
    output: Annotated[
        Path | None,
        typer.Option(help="A file for all results, as JSON; written after every benchmark."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would run.")] = False,
    threads: Threads = None,
) -> None:
    """Run and print. Each benchmark is a command of its own, so that a failure ends only that."""
    device = machine.default_device().type
    commands = COMMANDS[device]
    workload = {"device": device, "commands": len(commands), "threads": threads}
    report = Report("all", workload)
    results: dict[str, dict[str, Any] | None] = {}
    for number, command in enumerate(commands, 1):
        report.note(f"\n[{number}/{len(commands)}] minivllm bench {command}")
        results[command] = None if dry_run else _run(command, threads, report)
        if output is not None:
            output.write_text(report.json(results) + "\n", encoding="utf-8")
    report.finish(results, None)
    if not dry_run and None in results.values():
        raise typer.Exit(1)


def _run(command: str, num_threads: int, report: Report) -> dict[str, Any] | None:
    """The command's last line as an object, None if it fails; other lines are passed on."""
    line = ""
    with subprocess.Popen(
        [sys.executable, "-m", "minivllm", "bench", *command.split()],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONUNBUFFERED": "1"},
    ) as process:
        for following in process.stdout:
            if line:
                report.note(line)
            line = following.rstrip("\n")
    if process.returncode == 0:
        return json.loads(line)
    report.note(f"{line}\nfailed, with exit status {process.returncode}")
    return None
