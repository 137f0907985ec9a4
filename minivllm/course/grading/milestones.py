"""Milestones: which labs a reader has passed, kept in a file across notebooks and days."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from minivllm import envs

# What to build, in the order of the course, and the notebook that each belongs to.
MILESTONES = {
    "allocate_slots": "03", "copy_on_write": "04", "schedule": "05", "cap": "07",
    "find_longest_cache_hit": "08", "copy": "10", "masked_add": "10", "table_sum": "10",
    "row_softmax": "10", "online_softmax": "10", "decode_one": "10", "decode": "10", "merge": "11",
    "top_p": "12", "propose": "14", "mask": "15", "tool_stream": "16", "segments": "17",
    "dequantize": "18", "attend_codes": "19", "parallel_mlp": "20", "join": "21b", "quantile": "22",
    "mean_rows": "24", "fit_line": "26",
    "mini_engine": "all",
}  # fmt: skip


def _file() -> Path:
    return envs.cache_root() / "labs.json"


def passed() -> dict[str, str]:
    """The day on which each lab was first passed; solutions that ship with it do not count."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def note_passed(name: str) -> None:
    """Remember that a lab was passed. Where nothing can be written, nothing is."""
    if name not in (days := passed()):
        try:
            _file().parent.mkdir(parents=True, exist_ok=True)
            _file().write_text(
                json.dumps({**days, name: date.today().isoformat()}, indent=1), encoding="utf-8"
            )
        except OSError:
            return


def progress() -> None:
    """Print each lab, its notebook, and whether it is passed."""
    days = passed()
    for name, notebook in MILESTONES.items():
        state = f"passed {days[name]}" if name in days else "-"
        print(f"{name:22} notebook {notebook:4} {state}")
    print(f"{len(MILESTONES.keys() & days)} of {len(MILESTONES)}")
