"""Number of CPU threads of a step: torch's, fewer for small batches or under contention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.cpu.contention import CPUContention
from minivllm.cpu.spin import describe_spinning
from minivllm.logger import init_logger

logger = init_logger(__name__)

WORTH_SHARING = 2**25
"""Smallest number of operations for which a step has more than one thread: a quarter of a
millisecond's work. A step has dozens of products, and after each the threads wait for one another.
"""
contention = CPUContention()


def bound_threads(function: Callable[..., Any], operations: int) -> Callable[..., Any]:
    """Let a function of rows have only the threads that its work is worth and that have a core.

    Args:
        function: of a tensor with a row per token, and other arguments.
        operations: of one row.
    """

    def bounded(rows: torch.Tensor, *args, **kwargs):
        num_threads = torch.get_num_threads()
        chosen = threads_for(operations * len(rows), num_threads)
        if chosen == num_threads:
            return function(rows, *args, **kwargs)
        torch.set_num_threads(chosen)
        try:
            return function(rows, *args, **kwargs)
        finally:
            torch.set_num_threads(num_threads)

    return bounded


def threads_for(operations: int, num_threads: int) -> int:
    """Number of threads for a step with that many operations, at most ``num_threads``."""
    if num_threads == 1 or operations < WORTH_SHARING:
        return 1
    return contention.threads(num_threads)


def log_threads() -> None:
    """Log the number of threads and how they wait for one another, at DEBUG."""
    logger.debug(
        "%d threads, one for steps of less than %d million operations; spinning: %s.",
        torch.get_num_threads(), WORTH_SHARING // 10**6, describe_spinning(),
    )  # fmt: skip
