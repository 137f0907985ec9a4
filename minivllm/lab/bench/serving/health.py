"""Health checks under load: seconds until a busy server answers one."""

from __future__ import annotations

import asyncio
from statistics import fmean, median

from minivllm.lab.bench.serving.client import Client

_PAUSE = 0.02  # seconds between an answer and the next question


async def ask_health(client: Client, seconds: list[float]) -> None:
    """Ask /health again and again until cancelled, and note how long each answer took.

    Raises:
        ValueError: if it is not answered with status 200.
    """
    while True:
        seconds.append(await client.health())
        await asyncio.sleep(_PAUSE)


def health_figures(seconds: list[float]) -> dict[str, float]:
    """Figures of what ``ask_health`` has noted, in milliseconds; none if it was not asked."""
    if not seconds:
        return {}
    return {
        "health_requests": len(seconds),
        "mean_health_ms": 1000 * fmean(seconds),
        "median_health_ms": 1000 * median(seconds),
        "max_health_ms": 1000 * max(seconds),
    }
