"""Threads of a step on a CPU: torch's number, or fewer for a little work or in company."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import minivllm
from minivllm.logger import init_logger
from minivllm.ops.company import Company

logger = init_logger(__name__)

WORTH_SHARING = 2**25
"""Operations of a step from which on it has more than one thread: a quarter of a millisecond's
work. A step has dozens of products, and after each the threads wait for one another."""
company = Company()


@contextmanager
def threads_for(operations: int, device: torch.device) -> Iterator[None]:
    """Context manager: as many threads as there is work and room for on a CPU, torch's at most."""
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        yield
        return
    chosen = 1 if operations < WORTH_SHARING else company.threads(num_threads)
    if chosen == num_threads:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def log_threads(device: torch.device) -> None:
    """Log the number of threads and how they wait for one another, at DEBUG."""
    if device.type == "cpu":
        logger.debug(
            "%d threads, one for steps of less than %d million operations; spinning: %s.",
            torch.get_num_threads(), WORTH_SHARING // 10**6, minivllm.spinning,
        )  # fmt: skip
