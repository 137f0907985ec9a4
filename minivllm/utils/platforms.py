"""The device that a model runs on. (vLLM: vllm/platforms/)"""

from __future__ import annotations

import torch


def pick_device(name: str) -> torch.device:
    """The device that ``EngineArgs.device`` means.

    Raises:
        ValueError: if there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no GPU here; use 'cpu' or 'auto'.")
    return torch.device(name)


def describe_gpu(device: torch.device) -> tuple[str, int] | None:
    """Name and bytes of memory of a GPU; None for a CPU."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory
