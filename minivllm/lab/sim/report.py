"""Reports of simulations: text tables, and one line of JSON."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.sim.sharing import SharingRow
from minivllm.lab.sim.waste import WasteRow
from minivllm.utils.toml_data import load_toml

_NOTES = load_toml(__package__, "report")  # below the tables


# Of a result, in the order of the report.
_NUMBERS = (
    "seconds", "request_throughput", "input_throughput", "output_throughput", "ttft", "tpot", "itl",
    "num_preemptions", "prefix_hit_rate", "tokens_in_held", "saved_by_sharing", "memory",
    "memory_under_load", "num_blocks", "block_size", "num_steps", "num_wasted_tokens",
    "wall_seconds",
)  # fmt: skip


def as_dict(result: SimulationResult) -> dict[str, Any]:
    """Every number of a result but the single requests' times. Seconds, tokens and shares.

    A percentile of nothing is None, and so is a rate without end, since JSON knows neither.
    """
    return {
        "num_requests": len(result.requests),
        **{name: _plain(getattr(result, name)) for name in _NUMBERS},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, SlotUsage):
        return value._asdict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value if isfinite(value) else None


def describe(result: SimulationResult) -> str:
    """A simulation's result as a dozen lines of text."""
    size = result.block_size
    pool = f"{result.num_blocks * size:,} slots"
    if size > 1:
        pool += f" ({result.num_blocks:,} usable blocks of {size})"
    lines = [
        ("KV cache", pool),
        ("requests", f"{len(result.requests):,} in {result.seconds:,.1f} simulated seconds"),
        (
            "throughput",
            f"{result.request_throughput:,.2f} requests/s, {result.input_throughput:,.0f} prompt "
            f"and {result.output_throughput:,.0f} output tokens/s",
        ),
        ("TTFT", _milliseconds(result.ttft)),
        ("TPOT", _milliseconds(result.tpot)),
        ("ITL", _milliseconds(result.itl)),
        ("preemptions", f"{result.num_preemptions:,}"),
        ("prefix hits", f"{result.prefix_hit_rate:.1%} of the tokens looked up"),
        ("held memory", f"{result.tokens_in_held:.1%} of its slots hold tokens"),
        ("sharing", f"{result.saved_by_sharing:.1%} of the blocks saved"),
        ("whole pool", _shares(result)),
        ("steps", f"{result.num_steps:,}, simulated in {result.wall_seconds:.1f} s"),
    ]
    if result.num_wasted_tokens:
        lines.append(("wasted", f"{result.num_wasted_tokens:,} tokens behind the end of an answer"))
    return "\n".join(f"{name:<12} {text}" for name, text in lines)


def describe_waste(rows: tuple[WasteRow, ...]) -> str:
    """The paper's figure 2 as a table: ours, and the paper's number in brackets."""
    head = ("in % of the pool", "tokens", "reserved", "internal", "external & others", "= rounding",
            "+ in pieces", "+ left over")  # fmt: skip
    table = [head]
    for row in rows:
        ours, paper = row.measured, row.paper
        table.append(
            (
                f"{row.manager} ({paper.name})",
                _beside(ours.tokens, paper.tokens),
                _beside(ours.reserved, paper.reserved),
                _beside(ours.internal, paper.internal),
                _beside(row.external, paper.external),
                f"{ours.rounding:.1%}",
                f"{ours.external:.1%}",
                f"{ours.free:.1%}",
            )
        )
    paged = rows[-1]
    note = _NOTES["waste"].format(waste_in_held=paged.waste_in_held)
    return "\n".join([*_aligned(table), "", note])


def describe_sharing(rows: tuple[SharingRow, ...]) -> str:
    """The paper's figure 15 as a table: ours, and the range that the paper names."""
    sizes = list(rows[0].saved)
    table = [("blocks saved", *(f"n={n}" for n in sizes), "paper")]
    for row in rows:
        low, high = row.paper
        shares = (f"{row.saved[n]:.1%}" for n in sizes)
        name = f"{row.lengths}-like, {'beams' if row.beams else 'samples'}"
        table.append((name, *shares, f"{low:.1%} to {high:.1%}"))
    return "\n".join([*_aligned(table), "", _NOTES["sharing"]])


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in table]


def _milliseconds(percentiles: dict[str, float]) -> str:
    known = {name: value for name, value in percentiles.items() if not isnan(value)}
    return ", ".join(f"{name} {value * 1e3:,.1f} ms" for name, value in known.items()) or "none"


def _shares(result: SimulationResult) -> str:
    named = result.memory._asdict().items()
    return ", ".join(f"{name} {share:.1%}" for name, share in named if share)


def _beside(ours: float, paper: float | None) -> str:
    return f"{ours:.1%} ({'-' if paper is None else f'{paper:.1%}'})".rjust(14)
