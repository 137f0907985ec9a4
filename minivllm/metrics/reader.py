"""Metrics as Python values, returned by ``LLM.get_metrics()``.

(vLLM: vllm/v1/metrics/reader.py)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Metric:
    """Base of all metrics: a name, and labels that tell it from others of that name."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """Counter: a number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Vector: a counter for each draft position, from 0. Prometheus has a label for it."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """Gauge: a current value."""

    value: float


@dataclass
class Histogram(Metric):
    """Histogram: cumulative counts by upper bound; the last bound is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]
