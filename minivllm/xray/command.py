"""``minivllm xray FILE``: the report, and the files for a browser and for Perfetto."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minivllm.lab.viz.figures.timeline import timeline
from minivllm.lab.viz.page.chrome_trace import save_chrome_trace
from minivllm.lab.viz.page.page import save_html
from minivllm.utils.validation import check
from minivllm.xray.engines import load_engines, report_engines
from minivllm.xray.follow import follow
from minivllm.xray.format import XRay
from minivllm.xray.replay import check_records
from minivllm.xray.scenarios import parse_changes, what_if
from minivllm.xray.verification import verify

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
    code = 0
    for name, xray in xrays.items():
        check(xray.trace.num_steps > 0, "FILE", name, "an X-ray with at least one step")
        folder = output if output is None or len(xrays) == 1 else output / Path(name).stem
        if len(xrays) > 1 and (verifies or settings):
            print(f"== {name} ==")
        if folder is not None:
            check_records(xray)
            for path in write_pages(xray, folder):
                print(path, file=sys.stderr if as_json else sys.stdout)
        if verifies:
            found = verify(xray)
            print(found)
            code = max(code, 0 if found else 1)
        elif settings:
            _print_what_if(xray, changes, folder)
    if not verifies and not settings:
        found_all = report_engines(xrays)
        print(json.dumps(found_all.to_json(), indent=1) if as_json else found_all)
    return code


def _print_what_if(xray: XRay, changes: list[dict], folder: Path | None) -> None:
    scenarios = what_if(xray, *changes)
    print(scenarios)
    if folder is not None:
        path = folder / "what-if.svg"
        scenarios.timelines().save(path)
        print(path)


def write_pages(xray: XRay, folder: Path) -> list[Path]:
    """Write the stepper page, the timeline's last steps and the file for Perfetto.

    Raises:
        OSError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace = xray.trace
    paths = [folder / name for name in ("xray.html", "timeline.svg", "perfetto.json")]
    title = f"What vLLM {xray.header.get('vllm_version', '?')} did"
    save_html(trace, paths[0], title=title)
    first = max(trace.first_step, trace.num_steps - MOST_DRAWN)
    timeline(trace, first=first).save(paths[1])
    save_chrome_trace(trace, paths[2])
    return paths
