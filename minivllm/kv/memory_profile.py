"""MemoryProfile: what fills a device's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryProfile:
    """Uses of a device's memory, in bytes.

    On a GPU ``weights``, ``activations`` and ``overhead`` are measured and the KV cache gets what
    they leave of ``total * gpu_memory_utilization``; on a CPU its size is stated.
    """

    device: str
    total: float  # of the device; infinite where the system does not tell
    weights: int
    activations: int  # the most that a full step needs beside weights and KV cache
    overhead: int  # of a GPU: what its driver and libraries hold outside of tensors; a CPU: 0
    kv_cache: int
    num_blocks: int  # of the KV cache, the null block included
    block_size: int
    cache_dtype: str  # "auto": the model's
    step_tokens: int  # of the full step that was measured
    step_seqs: int

    @property
    def parts(self) -> list[tuple[str, int, str]]:
        """Rows ``(name, bytes, how it came about)``, for a table or a figure."""
        step = f"peak of a step: {self.step_tokens} tokens, {self.step_seqs} sequences"
        blocks = f"{self.num_blocks} blocks of {self.block_size} tokens"
        if self.cache_dtype != "auto":
            blocks += f" in {self.cache_dtype}"
        rows = [
            ("weights", self.weights, "all parameters"),
            ("activations", self.activations, step),
            ("overhead", self.overhead, "held outside of tensors"),
            ("KV cache", self.kv_cache, blocks),
        ]
        return [row for row in rows if row[1] or row[0] != "overhead"]

    def __str__(self) -> str:
        rows = [f"Memory of {self.device}, {format_bytes(self.total)} in all:"]
        rows += [f"  {name:12}{format_bytes(size):>12}  {why}" for name, size, why in self.parts]
        return "\n".join(rows)


def format_bytes(size: float) -> str:
    """``1.50 GiB``, or MiB where it is less than one."""
    unit, name = (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")
    return f"{size / unit:,.2f} {name}"


def host_memory_gib() -> float:
    """Physical memory; without limit where the system does not tell (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError):
        return float("inf")
