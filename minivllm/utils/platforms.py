"""The device that a model runs on, and what can be said of a GPU. (vLLM: vllm/platforms/)"""

from __future__ import annotations

import os
import re

import torch

OLDEST = (7, 0)  # compute capability below which no kernel of ours is made
WITH_BFLOAT16 = (8, 0)  # from here on


def pick_device(name: str) -> torch.device:
    """The device that ``EngineArgs.device`` means.

    Raises:
        ValueError: if there is no such device here, or the GPU is too old.
    """
    if name == "auto":
        usable = torch.cuda.is_available() and gpu_obstacle() is None
        return torch.device("cuda" if usable else "cpu")
    if name == "cuda" and (obstacle := gpu_obstacle()) is not None:
        raise ValueError(f"device='cuda', but {obstacle}; use 'cpu' or 'auto'.")
    return torch.device(name)


def gpu_obstacle() -> str | None:
    """Why this machine's GPU cannot be used, as the middle of a sentence; None if it can."""
    if not torch.cuda.is_available():
        return _absence()
    capability = torch.cuda.get_device_capability()
    built_for = [int(digits) for digits in re.findall(r"sm_(\d+)", str(torch.cuda.get_arch_list()))]
    oldest = max(OLDEST, divmod(min(built_for, default=0), 10))
    if capability < oldest:
        whose = "minivllm" if oldest == OLDEST else f"this torch ({torch.__version__})"
        return f"{whose} needs compute capability {as_version(oldest)}, and {gpu_text()} has less"
    return None


def _absence() -> str:
    """Why torch sees no GPU: no CUDA, a driver that is too old, or one that is hidden."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    try:
        torch.cuda.init()
    except RuntimeError as error:  # torch says it best; its advice with links is left out
        reason = str(error).partition(". ")[0].strip().rstrip(".")
        if "driver" in reason:
            return reason
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"torch sees no GPU with CUDA_VISIBLE_DEVICES={visible!r}"
    return "torch sees no GPU here"


def as_version(capability: tuple[int, int]) -> str:
    """Compute capability as text, ``"7.5"``."""
    return f"{capability[0]}.{capability[1]}"


def gpu_text(device: torch.device | None = None) -> str:
    """A GPU's name and compute capability, as vLLM writes them."""
    capability = as_version(torch.cuda.get_device_capability(device))
    name = torch.cuda.get_device_name(device)
    return f"{name!r} (with compute capability {capability})"


def check_if_supports_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ``ValueError``, in vLLM's words, for bfloat16 on a GPU that has none."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < WITH_BFLOAT16:
        name = torch.cuda.get_device_name(device)
        raise ValueError(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
            f"{name} GPU has compute capability {as_version(capability)}. You can use float16 "
            "instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half."
        )


def describe_gpu(device: torch.device) -> tuple[str, int] | None:
    """Name and bytes of memory of a GPU; None for a CPU."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory
