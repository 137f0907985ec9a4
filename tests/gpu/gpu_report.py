"""The report of the tests on a GPU: a table to read, and a JSON file to send."""

import json
import platform
import subprocess
import sys

import torch

results = {}  # by test: outcome, seconds, the first line of why
figures = {}  # by name: number, unit, and the goal if there is one
SLOW = 20  # seconds that no test should need on a card


def note(report):
    """Keep the outcome of a test; a failure in its set-up or tear-down is one, too."""
    known = results.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    known["seconds"] = round(known["seconds"] + report.duration, 2)
    if report.failed:
        known["outcome"] = "failed"
        known["why"] = first_line(report)
    elif report.skipped:
        known["outcome"] = "skipped"
        known["why"] = str(report.longrepr[-1]).removeprefix("Skipped: ")


def first_line(report):
    """The first line of why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(report.longrepr if crash is None else crash.message).strip().splitlines()
    return lines[0] if lines else "no reason was given"


def measured(name, value, unit, goal=None):
    """Note a figure. Speed never fails a test: it is held against its goal in the table."""
    figures[name] = {"value": round(float(value), 4), "unit": unit, "goal": goal}


def machine(interpreted):
    """The card, its driver, and the versions."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    triton = sys.modules.get("triton")
    found["triton"] = getattr(triton, "__version__", "not imported")
    if interpreted or not torch.cuda.is_available():
        return {"card": "none: Triton's interpreter, on a CPU"} | found
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
    } | found


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return done.stdout.split()[0]


def finish(path, interpreted):
    """Write the JSON file; returns the table's lines."""
    whole = {"machine": machine(interpreted), "results": results, "figures": figures}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    lines = ["", "GPU report"]
    lines += [f"  {key:<11} {value}" for key, value in whole["machine"].items()]
    by_file = {}
    for name, result in results.items():
        outcomes = by_file.setdefault(name.partition("::")[0].rpartition("/")[2], [])
        outcomes.append(result)
    lines.append(f"  {'tests':<28} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for file, outcomes in by_file.items():
        kinds = [result["outcome"] for result in outcomes]
        seconds = sum(result["seconds"] for result in outcomes)
        counts = [kinds.count(kind) for kind in ("passed", "failed", "skipped")]
        lines.append(f"  {file:<28} {counts[0]:>7} {counts[1]:>7} {counts[2]:>8} {seconds:>8.1f}")
    for name, result in results.items():
        if result["outcome"] == "failed":
            lines.append(f"  FAILED {name.rpartition('/')[2]}: {result['why']}")
        elif result["seconds"] > SLOW and not interpreted:
            lines.append(f"  SLOW   {name.rpartition('/')[2]}: {result['seconds']} s")
    for name, figure in figures.items():
        goal = "" if figure["goal"] is None else f"   goal: {figure['goal']}"
        lines.append(f"  {name:<44} {figure['value']:>10,.2f} {figure['unit']}{goal}")
    return [*lines, f"  written to {path}"]
