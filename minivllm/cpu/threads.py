"""Threads of a step on a CPU: torch's number, or fewer for a little work or in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.cpu.contention import Company
from minivllm.cpu.spin import describe_spinning
from minivllm.logger import init_logger

logger = init_logger(__name__)

WORTH_SHARING = 2**25
"""Operations of a step from which on it has more than one thread: a quarter of a millisecond's
work. A step has dozens of products, and after each the threads wait for one another."""
company = Company()


def bound_threads(function: Callable[..., Any], operations: int) -> Callable[..., Any]:
    """A function of rows that has as many threads as there is work and room for, torch's at most.

    Args:
        function: of a tensor with a row per token, and other arguments.
        operations: of one row.
    """

    def bounded(rows: torch.Tensor, *args):
        num_threads = torch.get_num_threads()
        chosen = threads_for(operations * len(rows), num_threads)
        if chosen == num_threads:
            return function(rows, *args)
        torch.set_num_threads(chosen)
        try:
            return function(rows, *args)
        finally:
            torch.set_num_threads(num_threads)

    return bounded


def threads_for(operations: int, num_threads: int) -> int:
    """Number of threads for a step of that work, of ``num_threads`` at most."""
    if num_threads == 1 or operations < WORTH_SHARING:
        return 1
    return company.threads(num_threads)


def log_threads() -> None:
    """Log the number of threads and how they wait for one another, at DEBUG."""
    logger.debug(
        "%d threads, one for steps of less than %d million operations; spinning: %s.",
        torch.get_num_threads(), WORTH_SHARING // 10**6, describe_spinning(),
    )  # fmt: skip
