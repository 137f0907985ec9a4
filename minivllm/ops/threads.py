"""Threads of a step on a CPU: torch's number, or one where there is too little work for two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import minivllm
from minivllm.logger import init_logger

logger = init_logger(__name__)

WORTH_SHARING = 2**25
"""Operations of a step from which on it has more than one thread: a quarter of a millisecond's
work. A step has dozens of products, and after each the threads wait for one another."""


@contextmanager
def threads_for(operations: int, device: torch.device) -> Iterator[None]:
    """Context manager: one thread for a little work on a CPU; otherwise nothing changes."""
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or operations >= WORTH_SHARING or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
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
