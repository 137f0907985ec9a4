"""What this machine can do at best, measured: bytes moved and products added up per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

LARGE = 2**28  # bytes, beyond any cache
MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}


def default_device() -> torch.device:
    """Where engines run that are not told where: a GPU if torch sees one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def best_seconds(function: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Wall time of the quickest of several calls, after one that warms up."""
    function()
    times = []
    for _ in range(repeats):
        _wait_for(device)
        begin = time.perf_counter()
        function()
        _wait_for(device)
        times.append(time.perf_counter() - begin)
    return min(times)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def read_bytes_per_second(device: torch.device) -> float:
    """Adding up a tensor too large for any cache."""
    numbers = torch.ones(LARGE // 4, device=device)
    return LARGE / best_seconds(numbers.sum, device)


def copy_bytes_per_second(device: torch.device) -> float:
    """Copying such a tensor; bytes read and bytes written both count."""
    src = torch.ones(LARGE // 4, device=device)
    dst = torch.empty_like(src)
    return 2 * LARGE / best_seconds(lambda: dst.copy_(src), device)


def flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """A product of two square matrices."""
    size = MATRIX_SIZE[device.type]
    a = torch.ones(size, size, device=device, dtype=dtype)
    return 2 * size**3 / best_seconds(lambda: a @ a, device)


def measure(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """All three, in GB/s and GFLOP/s."""
    return {
        "read_gb_per_s": read_bytes_per_second(device) / 1e9,
        "copy_gb_per_s": copy_bytes_per_second(device) / 1e9,
        "gflop_per_s": flops_per_second(device, dtype) / 1e9,
    }


def cache_bytes(device: torch.device) -> int:
    """A CPU's largest cache as Linux tells it, elsewhere 32 MiB is assumed; 0 for a GPU."""
    if device.type == "cuda":
        return 0
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [path.read_text().strip() for path in caches]
    units = {"K": 2**10, "M": 2**20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1] in units), default=32 * 2**20)
