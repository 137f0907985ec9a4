"""Step bars: two bars for each number of ranks, what the devices take and what the CPU takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import box_swatch
from minivllm.lab.viz.draw.palette import LINE, OKABE_ITO, ON_DARK, PAPER
from minivllm.utils.validation import check

DEVICES = {"fill": OKABE_ITO[0]}
CPU = {"fill": PAPER, "stroke": LINE}


def step_bars(
    steps: Mapping[str, tuple[float, float, float]],
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw two bars for each number of ranks: the longer one is the step.

    Args:
        steps: by name, such as "TP 2": milliseconds of the devices, of the CPU, and of the step as
            it was measured.
        title, mark: what it shows, and bars to point at, such as ("TP 2 devices", text).

    Raises:
        ValueError: without steps, or for times that are not above 0.
    """
    check(len(steps) > 0, "steps", steps, "at least one")
    for name, times in steps.items():
        ok = len(times) == 3 and all(time > 0 for time in times)
        check(ok, f"steps[{name!r}]", times, "three times above 0")
    head = "Devices and CPU"
    facts = "milliseconds of a step; the longer of the two decides"
    bars = []
    rows = []
    for name, (devices, cpu, measured) in steps.items():
        told = f"measured {measured:.1f}"
        by_devices = devices >= cpu
        bars += [
            Bar(
                name,
                [Part(devices, DEVICES, f"{devices:.1f}", ink=ON_DARK)],
                note=told if by_devices else "",
                key=f"{name} devices",
            ),
            Bar(
                "",
                [Part(cpu, CPU, f"{cpu:.1f}", hatched=True)],
                note="" if by_devices else told,
                key=f"{name} CPU",
            ),
        ]
        rows.append(f"{name:6} devices {devices:5.1f}, CPU {cpu:5.1f}, {told}")
    alt = f"{head}, {facts}. {'; '.join(' '.join(row.split()) for row in rows)}."
    legend = [(box_swatch(**DEVICES), "devices"), (box_swatch(hatched=True, **CPU), "CPU")]
    whole = max(max(times[:2]) for times in steps.values())
    drawing = draw_bars(head, facts, alt, bars=bars, whole=whole, length=420, legend=legend)
    return finish(drawing, "\n".join([head, facts, *rows]), title, mark)
