"""Environment variables: one table, read when asked, each with its meaning and default."""

from __future__ import annotations

import os

_TABLE: dict[str, tuple[str, str]] = {
    # name: (default, meaning)
    "MINIVLLM_LOGGING_LEVEL": ("INFO", "how much the engine logs: DEBUG, INFO, WARNING or ERROR"),
    "MINIVLLM_CPU_KVCACHE_SPACE": ("1", "GiB of memory for the KV cache when the device is a CPU"),
}


def get(name: str) -> str:
    """The variable's text, or its default."""
    return os.environ.get(name, _TABLE[name][0])


def table() -> list[tuple[str, str, str]]:
    """Rows ``(name, default, meaning)``, for documentation."""
    return [(name, default, meaning) for name, (default, meaning) in _TABLE.items()]


def logging_level() -> str:
    level = get("MINIVLLM_LOGGING_LEVEL").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError(
            f"MINIVLLM_LOGGING_LEVEL must be DEBUG, INFO, WARNING or ERROR, got {level!r}."
        )
    return level


def cpu_kvcache_bytes() -> int:
    text = get("MINIVLLM_CPU_KVCACHE_SPACE")
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not 0 < gib < float("inf"):
        raise ValueError(
            f"MINIVLLM_CPU_KVCACHE_SPACE must be a number of GiB above 0, got {text!r}."
        )
    return int(gib * 2**30)
