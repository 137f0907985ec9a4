"""``minivllm bench all``: every case of this kind of machine, beside what it should reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from minivllm.lab.bench import ceiling
from minivllm.lab.bench.engines import is_installed
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.targets import CASES, Case


def bench_all(dry_run: bool, output: Path | None) -> list[str]:
    """Run and print. Each case is a command of its own, so that a failure ends only that.

    Args:
        dry_run: print the commands and their targets, run nothing.
        output: a file for the last line; it is written after every case.

    Returns:
        The names of the cases that failed.
    """
    device = ceiling.default_device().type
    cases = CASES[device]
    num_threads = torch.get_num_threads()
    workload = {"device": device, "cases": len(cases), "threads": num_threads}
    report = Report("all", workload)
    results: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(cases, 1):
        command = _command(case)
        report.note(f"\n[{number}/{len(cases)}] {case.name}: minivllm {' '.join(command)}")
        line = None if dry_run else _run(command, num_threads, report)
        targets = [target.reached(line or {}) for target in case.targets]
        results[case.name] = {"command": command, "targets": targets, "line": line}
        for target in targets:
            report.note(f"target: {target['what']} {target['goal']}: {_verdict(target)}")
        if output is not None:
            output.write_text(report.json(results) + "\n")
    if not dry_run:
        report.table(
            "all targets",
            ("case", "target", "goal", "reached", ""),
            [
                (name, target["what"], target["goal"], target["value"], _verdict(target))
                for name, found in results.items()
                for target in found["targets"]
            ],
        )
    report.finish(results, None)
    return [] if dry_run else [name for name, found in results.items() if found["line"] is None]


def _command(case: Case) -> list[str]:
    peers = [part for p in case.against if is_installed(p) for part in ("--against", p)]
    return ["bench", *case.arguments.split(), *peers]


def _run(command: list[str], num_threads: int, report: Report) -> dict[str, Any] | None:
    """What the command's last line says; its other lines are passed on as they come."""
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONUNBUFFERED": "1"}
    line = ""
    with subprocess.Popen(
        [sys.executable, "-m", "minivllm", *command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        for following in process.stdout:
            if line:
                report.note(line)
            line = following.rstrip("\n")
    if process.returncode == 0:
        return json.loads(line)
    report.note(f"{line}\nfailed, with exit status {process.returncode}")
    return None


def _verdict(target: dict[str, Any]) -> str:
    if target["value"] is None:
        return "not measured"
    return "met" if target["met"] else f"short of it: {target['share']:.0%}"
