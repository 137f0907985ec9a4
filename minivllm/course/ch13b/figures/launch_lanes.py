"""Launch lanes: what the CPU starts and what the GPU runs, side by side in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.sim.launches import Launch
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, OKABE_ITO
from minivllm.lab.viz.draw.svg import text_width
from minivllm.utils.validation import check

LINE = 22
GAP = 14
LONGEST = 560  # pixels of the longest run


def launch_lanes(
    runs: Mapping[str, Sequence[Launch]], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw each run as two lanes: launches by the CPU, kernels on the GPU.

    Args:
        runs: by name, from ``launch_each`` and ``launch_graph``.
        title, mark: what it shows, and runs to point at: (name, "CPU" or "GPU", text).

    Raises:
        ValueError: if there is no run, or an empty one.
    """
    check(bool(runs) and all(runs.values()), "runs", runs, "launches by name, none empty")
    ends = {name: launches[-1].gpu[1] for name, launches in runs.items()}
    busy = {name: sum(end - begin for _, (begin, end) in runs[name]) for name in runs}
    told = "; ".join(
        f"{name}: {len(runs[name])} kernels, done after {ends[name]:,.0f} µs, the GPU works "
        f"{busy[name] / ends[name]:.0%} of them"
        for name in runs
    )
    head = "Launches and kernels"
    names = max(text_width(f"{name} GPU") for name in runs) + 10
    scale = LONGEST / max(ends.values())
    right = MARGIN + names + LONGEST + 80
    bottom = HEADER_HEIGHT + (2 * LINE + GAP) * len(runs)
    drawing = sheet(head, "time from left to right", f"{head}. {told}.", right, bottom)
    y = float(HEADER_HEIGHT)
    left = MARGIN + names
    for name, launches in runs.items():
        for lane, color, spans in (
            ("CPU", OKABE_ITO[1], [launch.cpu for launch in launches if launch.cpu]),
            ("GPU", OKABE_ITO[0], [launch.gpu for launch in launches]),
        ):
            first = spans[0][0]
            length = spans[-1][1] - first
            drawing.place((name, lane), left + scale * first, y + 3, scale * length, LINE - 6)
            drawing.text(left - 8, y + 15, f"{name} {lane}", text_anchor="end")
            for begin, end in spans:
                wide = max(0.6, scale * (end - begin) - 0.4)
                drawing.rect(left + scale * begin, y + 3, wide, LINE - 6, fill=color)
            y += LINE
        end = left + scale * ends[name]
        drawing.text(end + 6, y - 7, f"{ends[name]:,.0f} µs", fill=GREY)
        y += GAP
    return finish(drawing, f"{head}\n  " + told.replace("; ", "\n  "), title, mark)
