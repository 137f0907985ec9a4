"""``minivllm xray FILE``: the report, and the files for a browser and for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minivllm.lab.viz.figures.timeline import timeline
from minivllm.lab.viz.page.chrome_trace import save_chrome_trace
from minivllm.lab.viz.page.page import save_html
from minivllm.utils.validation import check
from minivllm.xray.follow import follow
from minivllm.xray.format import XRay, load_xray
from minivllm.xray.reports import report
from minivllm.xray.scenarios import parse_changes, what_if
from minivllm.xray.verification import verify

MOST_DRAWN = 300  # steps of a timeline


def run_xray(
    file: Path,
    output: Path | None = None,
    settings: Sequence[str] = (),
    verifies: bool = False,
    follows: bool = False,
) -> int:
    """Print what was asked for; returns the command's exit code.

    Args:
        file: that the tracer has written.
        output: folder for the pages; None writes none.
        settings: of ``--what-if``, such as "max_num_seqs=8,16".
        verifies: compare with our scheduler, and exit with 1 if it differs.
        follows: say what happens while the file grows, until Ctrl-C.

    Raises:
        OSError, ValueError: for a file or a setting that cannot be used.
    """
    if follows:
        with suppress(KeyboardInterrupt):
            follow(file, print, lambda: True)
        return 0
    xray = load_xray(file)
    check(xray.trace.num_steps > 0, "FILE", str(file), "an X-ray with at least one step")
    if output is not None:
        for path in write_pages(xray, output):
            print(path)
    if verifies:
        found = verify(xray)
        print(found)
        return 0 if found else 1
    if settings:
        scenarios = what_if(xray, *parse_changes(settings))
        print(scenarios)
        if output is not None:
            path = output / "what-if.svg"
            scenarios.timelines().save(path)
            print(path)
        return 0
    print(report(xray))
    return 0


def write_pages(xray: XRay, folder: Path) -> list[Path]:
    """Write the stepper page, the timeline's last steps and the file for Perfetto.

    Raises:
        OSError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace = xray.trace
    paths = [folder / name for name in ("xray.html", "timeline.svg", "perfetto.json")]
    title = f"What vLLM {xray.header['vllm_version']} did"
    save_html(trace, paths[0], title=title)
    first = max(trace.first_step, trace.num_steps - MOST_DRAWN)
    timeline(trace, first=first).save(paths[1])
    save_chrome_trace(trace, paths[2])
    return paths
