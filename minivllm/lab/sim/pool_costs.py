"""Costs of a step whose prefill and decode parts are told apart: by measured fits, or the roofline.

A mixed step prefills some sequences and decodes others. What it costs decides whether it pays to
keep them apart: "serial" adds both parts up, "overlapped" takes the longer one, which is what the
roofline promises and POD-Attention (Kamath et al. 2024) comes near to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minivllm.lab.sim.cost import CostModel
from minivllm.lab.sim.replica import Size
from minivllm.utils.validation import check

MIXED = ("serial", "overlapped")


class PoolCost(Protocol):
    """Seconds of the two parts of a step, and bytes of what a prompt leaves behind."""

    mixed: str
    kv_bytes_per_token: float

    def prefill_seconds(self, num_tokens: int, num_pairs: int, num_kv: int) -> float: ...

    def decode_seconds(self, num_sequences: int, num_kv: int) -> float: ...


def step_seconds(cost: PoolCost, size: Size) -> float:
    """Seconds of a step: of its only part, or of both as ``cost.mixed`` says."""
    num_tokens = size.num_tokens - size.num_decodes
    num_pairs = size.num_attended - size.num_decode_kv
    parts = []
    if num_tokens:
        num_kv = size.num_kv - size.num_decode_kv - size.num_decodes
        parts.append(cost.prefill_seconds(num_tokens, num_pairs, num_kv))
    if size.num_decodes:
        parts.append(cost.decode_seconds(size.num_decodes, size.num_decode_kv))
    return max(parts, default=0.0) if cost.mixed == "overlapped" else sum(parts)


class RooflineCost:
    """The parts by the roofline of a device.

    Args:
        cost: of the model on the device.
        mixed: one of ``MIXED``.
    """

    def __init__(self, cost: CostModel, mixed: str = "overlapped"):
        check(mixed in MIXED, "mixed", mixed, f"one of {MIXED}")
        self.cost = cost
        self.mixed = mixed
        self.kv_bytes_per_token = cost.model.kv_bytes_per_token

    def prefill_seconds(self, num_tokens: int, num_pairs: int, num_kv: int) -> float:
        """Seconds of prefilling this many tokens, which see ``num_pairs`` tokens in all."""
        return self.cost.step_seconds(num_tokens, num_pairs, num_kv)

    def decode_seconds(self, num_sequences: int, num_kv: int) -> float:
        """Seconds of a token for each of these sequences, which see ``num_kv`` tokens in all."""
        return self.cost.step_seconds(num_sequences, num_kv, num_kv + num_sequences)


class DecodeFit(NamedTuple):
    """Milliseconds of decoding: ``base + per_kv * tokens seen + per_sequence * sequences``."""

    base: float
    per_kv: float
    per_sequence: float


@dataclass(frozen=True)
class TableCost:
    """Costs by fits of measured steps, in milliseconds.

    Attributes:
        name: whose they are.
        prefill: base, per token, per squared length of a prompt.
        small, large: decoding below ``large_from`` sequences, and from there on.
        engine: around each step: base, and per token that it sees.
        kv_bytes_per_token: of the model.
        mixed: one of ``MIXED``.
    """

    name: str
    prefill: tuple[float, float, float]
    small: DecodeFit
    large: DecodeFit
    large_from: int
    engine: tuple[float, float]
    kv_bytes_per_token: float
    mixed: str = "serial"

    def prefill_seconds(self, num_tokens: int, num_pairs: int, num_kv: int) -> float:
        """See ``RooflineCost``. A prompt of n tokens has n (n + 1) / 2 pairs."""
        base, per_token, per_square = self.prefill
        squares = 2 * num_pairs - num_tokens
        ms = base + per_token * num_tokens + per_square * squares + 1
        return (ms + self._engine_ms(num_tokens)) / 1e3

    def decode_seconds(self, num_sequences: int, num_kv: int) -> float:
        """See ``RooflineCost``."""
        fit = self.small if num_sequences < self.large_from else self.large
        ms = fit.base + fit.per_kv * num_kv + fit.per_sequence * num_sequences
        return (ms + self._engine_ms(num_kv)) / 1e3

    def _engine_ms(self, num_tokens: int) -> float:
        base, per_token = self.engine
        return base + per_token * num_tokens


_OPT_13B = 2 * 40 * 5120 * 2  # bytes of K and V per token
# OPT-13B on an A100, as DistServe's simulator has it (Zhong et al. 2024), one device
TABLES = {
    "distserve": TableCost(
        name="distserve",
        prefill=(18.103, 0.10191, 7.122e-6),
        small=DecodeFit(19.935, 6.269e-4, 0.03851),
        large=DecodeFit(7.166, 5.798e-4, 0.15831),
        large_from=95,
        engine=(2.0, 1e-4),
        kv_bytes_per_token=_OPT_13B,
    ),
    "vllm-0.3": TableCost(
        name="vllm-0.3",
        prefill=(22.052, 0.14051, 8.077e-6),
        small=DecodeFit(23.475, 5.929e-4, 0.06073),
        large=DecodeFit(20.206, 4.908e-4, 0.12000),
        large_from=95,
        engine=(2.0, 1e-4),
        kv_bytes_per_token=_OPT_13B,
    ),
}
