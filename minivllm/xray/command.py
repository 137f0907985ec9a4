"""``minivllm xray FILE``: the report, and the files for a browser and for Perfetto."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

from minivllm.lab.translation import translated
from minivllm.lab.viz.figures.timeline import timeline
from minivllm.lab.viz.page.chrome_trace import save_chrome_trace
from minivllm.lab.viz.page.page import page
from minivllm.logger import init_logger
from minivllm.trace import Trace
from minivllm.trace.records import StepEnded, StepStarted
from minivllm.utils.console import folded, terminal_columns
from minivllm.utils.validation import check
from minivllm.xray.engines import load_engines, report_engines
from minivllm.xray.follow import follow
from minivllm.xray.format import XRay
from minivllm.xray.replay import check_records
from minivllm.xray.reports import Report, report
from minivllm.xray.scenarios import parse_changes, what_if
from minivllm.xray.verification import verify
from minivllm.xray.waits_table import waits_table

logger = init_logger(__name__)

MOST_DRAWN = 300  # steps of a timeline


def run_xray(
    file: Path,
    output: Path | None = None,
    settings: Sequence[str] = (),
    verifies: bool = False,
    follows: bool = False,
    as_json: bool = False,
) -> int:
    """Print what was asked for; returns the command's exit code.

    Args:
        file: that the tracer has written; of several engines also the name that they have in
            common.
        output: folder for the pages; None writes none.
        settings: of ``--what-if``, such as "max_num_seqs=8,16".
        verifies: compare with our scheduler, and exit with 1 if it differs.
        follows: say what happens while the file grows, until Ctrl-C.
        as_json: print the report as JSON.

    Raises:
        OSError, ValueError: for a file or a setting that cannot be used.
    """
    if follows:
        with suppress(KeyboardInterrupt):
            follow(file, print, lambda: True)
        return 0
    changes = parse_changes(settings)
    xrays = load_engines(file)
    reports = {}
    code = 0
    for name, xray in xrays.items():
        check(xray.trace.num_steps > 0, "FILE", name, "an X-ray with at least one step")
        folder = output if output is None or len(xrays) == 1 else output / Path(name).stem
        if len(xrays) > 1 and (verifies or settings):
            print(f"== {name} ==")
        if folder is not None:
            check_records(xray)
        if folder is not None or not (verifies or settings):
            reports[name] = report(xray)
        if folder is not None:
            for path in write_pages(reports[name], folder):
                print(path, file=sys.stderr if as_json else sys.stdout)
        if verifies:
            found = verify(xray)
            print(found)
            code = max(code, 0 if found else 1)
        elif settings:
            _print_what_if(xray, changes, folder)
    if not verifies and not settings:
        found_all = report_engines(reports)
        print(json.dumps(found_all.to_json(), indent=1) if as_json else found_all)
    return code


def _print_what_if(xray: XRay, changes: list[dict], folder: Path | None) -> None:
    scenarios = what_if(xray, *changes)
    columns = terminal_columns()
    print(folded(scenarios.text(columns), columns))
    if folder is not None:
        path = folder / "what-if.svg"
        scenarios.timelines().save(path)
        print(path)


def write_pages(found: Report, folder: Path) -> list[Path]:
    """Write the stepper page, the timeline's last steps and the file for Perfetto.

    Of a run whose oldest steps were dropped it is only the timeline: the others begin with step 0.
    A last step that has not ended is left out.

    Raises:
        OSError: if the folder cannot be written.
        ValueError: if no step has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    xray = found.xray
    trace = of_ended_steps(xray.trace)
    check(trace.num_steps > trace.first_step, "FILE", xray.trace, "an X-ray with a step that ended")
    paths = [folder / name for name in ("timeline.svg", "xray.html", "perfetto.json")]
    first = max(trace.first_step, trace.num_steps - MOST_DRAWN)
    timeline(trace, first=first).save(paths[0])
    if trace.first_step > 0:
        logger.warning("steps before %d were dropped: only a timeline is drawn.", trace.first_step)
        return paths[:1]
    version = str(xray.header.get("vllm_version", "?"))
    title = translated("What vLLM # did").replace("#", version)
    text = page(trace, title, outputs=None, decode=None, waits=waits_table(found, trace))
    paths[1].write_text(text, encoding="utf-8")
    save_chrome_trace(trace, paths[2])
    return paths


def of_ended_steps(trace: Trace) -> Trace:
    """The trace without a last step that has begun and not ended."""
    places = [i for i, r in enumerate(trace.records) if isinstance(r, (StepStarted, StepEnded))]
    if not places or isinstance(trace.records[places[-1]], StepEnded):
        return trace
    whole = copy(trace)
    whole.records = trace.records[: places[-1]]
    whole.step -= 1
    return whole
