"""Machine: measured peak bandwidth and FLOP/s, CPU timers, peak memory.

Bookkeeping is measured in the process's own CPU time, so that a busy neighbour costs it little.
Of several repetitions the best counts: whatever disturbs a run only ever makes it slower.
"""

from __future__ import annotations

import gc
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from minivllm.kv.memory_profile import host_memory_gib
from minivllm.lab.sim.cost import Hardware

if TYPE_CHECKING:
    import torch

LARGE = {"cpu": 2**28, "cuda": 2**31}  # bytes, beyond any cache
MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}


def default_device() -> torch.device:
    """The default device of engines: a GPU if torch sees one, or as ``MINIVLLM_DEVICE`` says."""
    from minivllm.engine.device import resolve_device

    return resolve_device("auto")


def best_seconds(function: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Time of the quickest of several calls, after warming up.

    On a GPU: between two events around each call, the L2 cache cleared before, and the calls queued
    so that what Python needs to launch them is hidden (Triton's ``do_bench``).
    """
    if device.type == "cuda":
        from triton.testing import do_bench

        return do_bench(function, return_mode="min") / 1e3
    function()
    return min(timeit.repeat(function, number=1, repeat=repeats))


def flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product. Random numbers: a GPU's clock falls as bits flip.

    A CPU without instructions for 16-bit numbers is faster in float32, and so is an engine that
    widens them: there the product of that is the ceiling. A small one decides, for a large one of
    16-bit numbers takes seconds there, or minutes.
    """
    import torch

    def product(dtype: torch.dtype, size: int) -> Callable[[], object]:
        a = torch.randn(size, size, device=device).to(dtype)
        return lambda: a @ a

    size = MATRIX_SIZE[device.type]
    dtypes = {dtype, torch.float32} if device.type == "cpu" else {dtype}
    fastest = min(dtypes, key=lambda each: best_seconds(product(each, size // 8), device))
    return 2 * size**3 / best_seconds(product(fastest, size), device)


def measure(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Measured peaks in GB/s and GFLOP/s, and which bandwidth is the ceiling.

    Reading is the sum of a tensor too large for any cache, and copying is that of such a tensor:
    bytes read and bytes written both count.

    That of a CPU is reading, which is what decodes do. A GPU's is the copy: there a sum is no
    faster way to read, and the copy is what others quote.
    """
    import torch

    numbers = torch.ones(LARGE[device.type] // 4, device=device)
    copied = torch.empty_like(numbers)
    read = numbers.nbytes / best_seconds(numbers.sum, device) / 1e9
    copy = 2 * numbers.nbytes / best_seconds(lambda: copied.copy_(numbers), device) / 1e9
    return {
        "read_gb_per_s": read,
        "copy_gb_per_s": copy,
        "bandwidth_gb_per_s": copy if device.type == "cuda" else read,
        "gflop_per_s": flops_per_second(device, dtype) / 1e9,
    }


def as_hardware(peaks: dict[str, float]) -> Hardware:
    """``Hardware`` of measured peaks, for the roofline."""
    return Hardware(
        "measured",
        flops_per_s=peaks["gflop_per_s"] * 1e9,
        bytes_per_s=peaks["bandwidth_gb_per_s"] * 1e9,
        memory_bytes=host_memory_gib() * 2**30,
        overhead_s=0,
    )


def cache_bytes(device: torch.device) -> int:
    """Bytes of a CPU's largest cache (from sysfs, else 32 MiB is assumed); 0 for a GPU."""
    if device.type == "cuda":
        return 0
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [path.read_text(encoding="utf-8").strip() for path in caches]
    units = {"K": 2**10, "M": 2**20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1] in units), default=32 * 2**20)


# -- CPU time ------------------------------------------------------------------------------------


def best_cpu_seconds(function: Callable[[], object], repeats: int = 7, number: int = 1) -> float:
    """CPU time of a call, in the best of several rounds of ``number`` calls.

    Garbage is collected before them and not between.
    """
    gc.collect()
    times = timeit.repeat(function, timer=time.process_time, number=number, repeat=repeats)
    return min(times) / number


# -- memory --------------------------------------------------------------------------------------

COLUMNS = {
    "peak_memory_mib": "process",
    "peak_gpu_allocated_mib": "GPU, allocated",
    "peak_gpu_reserved_mib": "GPU, reserved",
}


def peak_memory() -> dict[str, float]:
    """Peak memory of this process in MiB, under the names of ``COLUMNS``.

    What cannot be told here (Windows; no GPU) is left out.
    """
    found = {}
    if sys.platform == "linux":
        # getrusage would count what the parent held when it made this process
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in status if line.startswith("VmHWM"))
        found["peak_memory_mib"] = int(line.split()[1]) / 2**10
    elif sys.platform == "darwin":
        import resource

        found["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["peak_gpu_allocated_mib"] = torch.cuda.max_memory_allocated() / 2**20
        found["peak_gpu_reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return found
