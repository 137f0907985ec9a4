"""Metrics as values, for who reads them in Python: ``LLM.get_metrics()``.

(vLLM: vllm/v1/metrics/reader.py)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Metric:
    """A name and the labels that tell it from others of that name."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters by position, the first one's at 0. Prometheus has a label for it."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number as it is now."""

    value: float


@dataclass
class Histogram(Metric):
    """How many observations were at most as large as each bound; the last bound is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]
