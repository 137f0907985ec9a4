"""Waste bars: of all slots of a pool, how many hold tokens, and what keeps the others from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.sim.waste import PaperBar, WasteRow
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import box_swatch
from minivllm.lab.viz.draw.palette import GREY, INK, ON_DARK, ON_LIGHT, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import pad, shorten
from minivllm.trace import Trace
from minivllm.trace.records import StepPlanned
from minivllm.trace.state import State
from minivllm.utils.validation import check

# In the order of the bars: what it is called, its colour, and the ink on it.
CLASSES = {
    "tokens": ("hold K and V of tokens", "#0072b2", ON_DARK),
    "reserved": ("reserved: will be filled later", "#a6d0ea", INK),
    "internal": ("internal: held, will never be filled", "#e69f00", ON_LIGHT),
    "rounding": ("rounding: the allocator's cut", "#f5d894", INK),
    "external": ("external: free, but in pieces too small", "#d55e00", ON_DARK),
    "free": ("free", PAPER, INK),
}
TEXT_WIDTH = 50  # characters of a bar in a terminal
MARKS = dict(zip(CLASSES, "█▒▚░╳·", strict=True))

Usage = SlotUsage | SimulationResult | Trace


def waste_bars(
    usages: Mapping[str, Usage] | Iterable[WasteRow], title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw one bar per way of managing memory, as shares of all its slots.

    Args:
        usages: by name, a ``SlotUsage`` (counts or shares), a ``SimulationResult`` (its ``memory``,
            the mean over time), or a ``Trace`` (the mean over steps); or the rows of
            ``minivllm.lab.sim.waste.measure_waste``, drawn with the bars of the PagedAttention
            paper's figure 2 beside ours.
        title, mark: what it shows, and parts to point at: (bar, part, text).

    Raises:
        ValueError: if there is nothing to draw, or a trace has no steps.
    """
    if isinstance(usages, Mapping):
        bars = [_Bar(name, _shares(_measure(usage))) for name, usage in usages.items()]
    else:
        bars = [_Bar(row.manager, _shares(row.measured), row.paper) for row in usages]
    check(len(bars) > 0, "usages", usages, "at least one")
    tokens = sorted(bar.shares.tokens for bar in bars)
    spread = translated(" to ").join(
        f"{share:.1%}" for share in dict.fromkeys((tokens[0], tokens[-1]))
    )
    facts = f"{spread} of all slots hold tokens"
    told = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    head = "Where the KV memory goes"
    alt = f"{head}, in shares of all slots: {told}."
    return finish(_drawing(bars, head, facts, alt), _text(bars, head, facts), title, mark)


def mean_usage(trace: Trace) -> SlotUsage:
    """Use of the slots of a paged pool, the mean over the steps of a trace.

    Only a sequence's last block can have empty slots; they are called internal, though most are
    about to be filled. A shared block is counted once.

    Raises:
        ValueError: for a trace without steps.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    state = trace.beginning()
    held = 0
    empty = 0
    for record in trace.records:
        state.apply(record)
        if isinstance(record, StepPlanned):
            held += len(state.ref_counts)
            empty += _empty_slots(state)
    size = trace.block_size
    steps = trace.num_steps
    free = (trace.num_blocks - 1) * steps - held
    return SlotUsage(
        tokens=(held * size - empty) / steps,
        reserved=0.0,
        internal=empty / steps,
        rounding=0.0,
        external=0.0,
        free=free * size / steps,
    )


def _empty_slots(state: State) -> int:
    empty = {}
    for seq in state.sequences.values():
        if seq.block_ids:
            filled = seq.num_computed_tokens + seq.num_scheduled_tokens
            empty[seq.block_ids[-1]] = len(seq.block_ids) * state.block_size - filled
    return sum(empty.values())


@dataclass(frozen=True)
class _Bar:
    name: str
    shares: SlotUsage
    paper: PaperBar | None = None

    @property
    def parts(self) -> list[tuple[str, float]]:
        return [(name, share) for name, share in self.shares._asdict().items() if share > 0]

    @property
    def words(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in self.parts)

    @property
    def paper_parts(self) -> list[tuple[str, float]]:
        given = self.paper._asdict().items()
        return [(name, share) for name, share in given if name in CLASSES and share]

    @property
    def paper_words(self) -> str:
        parts = ", ".join(f"{name} {share:.1%}" for name, share in self.paper_parts)
        return f"{parts} ({self.paper.name} in the paper)"


def _measure(usage: Usage) -> SlotUsage:
    if isinstance(usage, Trace):
        return mean_usage(usage)
    return usage.memory if isinstance(usage, SimulationResult) else usage


def _shares(usage: SlotUsage) -> SlotUsage:
    total = sum(usage)
    check(total > 0, "a usage", usage, "of at least one slot")
    return SlotUsage(*(part / total for part in usage))


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(bars: list[_Bar], title: str, facts: str, alt: str) -> Drawing:
    rows = []
    for bar in bars:
        name = shorten(bar.name, 22)
        rows.append(Bar(name, _drawn(bar.parts), below=bar.words, height=26, bold=True))
        if bar.paper:
            paper = _drawn(bar.paper_parts)
            rows.append(Bar(f"{name}: paper", paper, below=bar.paper_words, height=14))
    used = {name for bar in bars for name, share in bar.parts}
    legend = [
        (box_swatch(fill=fill, stroke=GREY), text)
        for name, (text, fill, _) in CLASSES.items()
        if name in used
    ]
    return draw_bars(title, facts, alt, bars=rows, whole=1, length=600, legend=legend)


def _drawn(parts: list[tuple[str, float]]) -> list[Part]:
    """A label says the share, and the name too where that fits."""
    drawn = []
    for name, share in parts:
        _, fill, ink = CLASSES[name]
        label = f"{name} {share:.0%}" if share >= 0.16 else f"{share:.0%}"
        drawn.append(Part(share, {"fill": fill, "stroke": GREY}, label, name, ink))
    return drawn


# -- in characters -------------------------------------------------------------------------------


def _text(bars: list[_Bar], title: str, facts: str) -> str:
    width = max(len(shorten(bar.name, 22)) for bar in bars) + 2
    lines = [title, facts, ""]
    for bar in bars:
        lines.append(pad(shorten(bar.name, 22), width) + _characters(bar.parts))
        lines.append("    " + bar.words)
        if bar.paper:
            lines.append("    " + bar.paper_words)
    used = [name for name in CLASSES if any(name == part for b in bars for part, _ in b.parts)]
    return "\n".join([*lines, "", "  ".join(f"{MARKS[name]} {name}" for name in used)])


def _characters(parts: list[tuple[str, float]]) -> str:
    done = 0.0
    text = ""
    for name, share in parts:
        done += share
        text += MARKS[name] * (round(done * TEXT_WIDTH) - len(text))
    return text
