"""``minivllm bench all``: every case of this kind of machine, beside the figures to reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minivllm.lab.bench import machine
from minivllm.lab.bench.engines import is_installed
from minivllm.lab.bench.report import Report


@dataclass(frozen=True)
class Target:
    """One figure of a benchmark's last line, and what it should be.

    A peer's figures are missing where it is not installed.
    """

    what: str
    path: tuple[str, ...]  # of keys, into the line
    goal: float
    at_most: bool = False  # else at least

    def reached(self, line: dict[str, Any]) -> dict[str, Any]:
        """``value``, ``share`` of the goal (from 1 on it is met) and ``met``; None if missing."""
        value: Any = line
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        share = None
        if value is not None:
            share = self.goal / value if self.at_most else value / self.goal
        return {
            "what": self.what,
            "goal": f"{'<=' if self.at_most else '>='} {self.goal:g}",
            "value": value,
            "share": share,
            "met": share and share >= 1,
        }


@dataclass(frozen=True)
class Case:
    """One benchmark: the arguments of ``minivllm bench``, peers apart, and its targets."""

    name: str
    arguments: str
    against: tuple[str, ...] = ()  # those of them that are installed take part
    targets: tuple[Target, ...] = ()


def _faster_than(peer: str, goal: float) -> Target:
    return Target(f"times as fast as {peer}", ("against", peer, "ratio"), goal)


def _same_answers(peer: str, goal: int) -> Target:
    return Target(f"answers as {peer}'s", ("against", peer, "same_answers"), goal)


_VLLM_MEMORY = Target("peak memory over vLLM's", ("against", "vllm", "memory_ratio"), 1.0, True)
_STEP = Target("of a decode step's bound", ("results", "share_of_step"), 0.7)


def _kernel(case: str, goal: float) -> Target:
    path = ("results", "paged_triton", case, "share_of_bandwidth")
    return Target(f"{case}: of bandwidth", path, goal)


_GPU_KERNELS = "kernels --backend paged_triton --num-heads 32 --num-kv-heads 8 --head-dim 128"

CASES: dict[str, tuple[Case, ...]] = {
    "cpu": (
        Case(
            "scheduler",
            "scheduler",
            ("vllm",),
            tuple(
                Target(f"{name}, over vLLM's core", ("against", name, "ratio"), 0.25, at_most=True)
                for name in ("caching_on", "caching_off")
            ),
        ),
        Case(
            "W1 tiny float32",
            "throughput --workload w1 --model tiny --dtype float32",
            ("vllm", "transformers"),
            (
                _faster_than("vllm", 1.2),
                _faster_than("transformers", 3.0),
                _same_answers("vllm", 64),
                _VLLM_MEMORY,
            ),
        ),
        Case(
            "W1 tiny bfloat16",
            "throughput --workload w1 --model tiny --dtype bfloat16",
            ("vllm",),
            (_faster_than("vllm", 1.0), _VLLM_MEMORY),
        ),
        Case(
            "W1 small bfloat16",
            "throughput --workload w1-short --model small --dtype bfloat16",
            ("vllm",),
            (_faster_than("vllm", 0.95), _VLLM_MEMORY),
        ),
        Case(
            "W2 tiny float32, caching",
            "throughput --workload w2 --model tiny --dtype float32",
            ("vllm",),
            (_faster_than("vllm", 1.0), _same_answers("vllm", 64)),
        ),
        Case("kernels", "kernels"),
        Case(
            "structured outputs",
            "structured",
            (),
            (
                Target("compiling a schema, ms", ("results", "compile_ms", "schema"), 50, True),
                Target("a schema's row, p50 us", ("results", "mask_us", "schema", "p50"), 20, True),
                Target("and p99", ("results", "mask_us", "schema", "p99"), 200, True),
                Target("of a step: lines", ("results", "step", "lines", "share"), 0.05, True),
                Target("of a step: list", ("results", "step", "list", "share"), 0.05, True),
            ),
        ),
    ),
    "cuda": (
        Case(
            "kernels, batch 64",
            f"{_GPU_KERNELS} --dtype bfloat16 --batch 64 --context 4096 --alone 32768 "
            "--prefill 8192",
            (),
            (
                _kernel("decode", 0.8),
                _kernel("decode alone", 0.6),
                Target(
                    "prefill: times as fast as flash SDPA",
                    ("against", "ratio", "paged_triton", "prefill"),
                    0.6,
                ),
            ),
        ),
        Case(
            "decode step, Qwen3-0.6B's shape",
            "latency --model qwen3-0.6b --dtype bfloat16 --batch-size 256 --input-len 512 "
            "--output-len 129",
            (),
            (_STEP,),
        ),
        Case(
            "decode step, Llama-8B's shape",
            "latency --model llama-8b --dtype bfloat16 --batch-size 64 --input-len 512 "
            "--output-len 129",
            (),
            (_STEP,),
        ),
        Case(
            "nano-vllm's workload",
            "throughput --workload nano --model qwen3-0.6b --dtype bfloat16 --max-num-seqs 256 "
            "--max-num-batched-tokens 16384 --repeats 1",
            ("transformers-cb",),
            (_faster_than("transformers-cb", 5.0),),
        ),
    ),
}


def bench_all(dry_run: bool, output: Path | None) -> list[str]:
    """Run and print. Each case is a command of its own, so that a failure ends only that.

    Args:
        dry_run: print the commands and their targets, run nothing.
        output: a file for the last line; it is written after every case.

    Returns:
        The names of the cases that failed.
    """
    device = machine.default_device().type
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
