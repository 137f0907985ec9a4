"""Resolver of an engine's device, and of the dtype that it computes in there.

(vLLM: ``_resolve_auto_dtype`` in vllm/config/model.py)
"""

from __future__ import annotations

import torch

from minivllm import envs
from minivllm.config import DTYPES
from minivllm.logger import init_logger
from minivllm.utils.platforms import check_if_supports_dtype, gpu_text, pick_device

logger = init_logger(__name__)


def resolve_device(name: str) -> torch.device:
    """The device that ``EngineArgs.device`` means; for "auto" ``MINIVLLM_DEVICE`` is asked first.

    Raises:
        ValueError: if there is no such device here, or the GPU is too old.
    """
    return pick_device(envs.device() if name == "auto" else name)


def resolve_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that ``EngineArgs.dtype`` means.

    Args:
        name: "auto", or a name of ``DTYPES``.
        dtype: the model's own.
        device: where it is computed. On a GPU without bfloat16, "auto" is float16 there.

    Raises:
        ValueError: if the name's dtype is not to be had there.
    """
    if name != "auto":
        dtype = getattr(torch, str(DTYPES[name]))
        check_if_supports_dtype(dtype, device)
        return dtype
    try:
        check_if_supports_dtype(dtype, device)
    except ValueError:
        message = "Your device %s doesn't support %s. Falling back to %s for compatibility."
        logger.warning(message, gpu_text(device), dtype, torch.float16)
        return torch.float16
    return dtype
