"""Engines: the files of several engines of one vLLM (``--data-parallel-size``), read together."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minivllm.logger import init_logger
from minivllm.xray.format import XRay, load_xray
from minivllm.xray.reports import Report, counted
from minivllm.xray.writer import path_of

logger = init_logger(__name__)

_APART = 600  # seconds: engines that began so far apart are of different runs


def load_engines(path: Path) -> dict[str, XRay]:
    """The X-rays that a name stands for, by their files' names: one, or that of each engine.

    Files of an older run, which had more engines, are left out, with a sentence in the log.

    Raises:
        OSError, ValueError: if there are none, or one cannot be read.
    """
    several = re.compile(re.escape(f"{path.stem}.dp") + r"(\d+)" + re.escape(path.suffix))
    matches = [several.fullmatch(name) for name in os.listdir(path.parent)]
    numbers = sorted(int(match[1]) for match in matches if match is not None)
    files = [Path(path_of(str(path), number)) for number in numbers]
    if path.exists() or not files:
        files.insert(0, path)
    xrays = {file.name: load_xray(file) for file in files}
    newest = max(xray.header.get("started", 0.0) for xray in xrays.values())
    for name, xray in list(xrays.items()):
        if newest - xray.header.get("started", 0.0) > _APART:
            logger.warning("%s is of an older run, and is left out.", name)
            del xrays[name]
    return xrays


@dataclass(frozen=True)
class EnginesReport:
    """Reports of several engines, and what they come to together."""

    reports: dict[str, Report]

    def __str__(self) -> str:
        parts = [f"== {name} ==\n{found}\n" for name, found in self.reports.items()]
        return "\n".join([*parts, f"== all {len(self.reports)} engines ==", *self._together()])

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Return what each report says, by its file's name."""
        return {name: found.to_json() for name, found in self.reports.items()}

    def _together(self) -> list[str]:
        found = [each.numbers for each in self.reports.values()]
        total = {name: sum(n[name] for n in found) for name in found[0] if name != "seconds"}
        waited: Counter = sum((each.steps_waited for each in self.reports.values()), Counter())
        loads = ", ".join(
            f"{name} {n['requests']}" for name, n in zip(self.reports, found, strict=True)
        )
        return [
            f"{total['requests']} requests ({loads}), {total['steps']} steps, "
            f"{total['tokens']} tokens",
            f"preemptions: {total['preemptions']}; {total['tokens dropped']} tokens dropped, "
            f"{total['tokens computed again']} of them computed again",
            "steps waited, by cause: " + (counted(waited) or "none"),
        ]


def report_engines(reports: dict[str, Report]) -> Report | EnginesReport:
    """The report of a run; with several engines one for each, and what they come to together."""
    return EnginesReport(reports) if len(reports) > 1 else next(iter(reports.values()))
