"""Number of CPU threads of a step: torch's, fewer for small batches or under contention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from minivllm.cpu.contention import CPUContention
from minivllm.cpu.spin import describe_spinning
from minivllm.logger import init_logger

logger = init_logger(__name__)

WORTH_SHARING = 2**25
"""Smallest number of operations for which a step has more than one thread: a quarter of a
millisecond's work. A step has dozens of products, and after each the threads wait for one another.
"""
contention = CPUContention()


class ThreadBounds:
    """Hooks that limit the threads of a model's parts by their work and by free cores.

    torch calls the first one before a module's ``forward`` and the second one behind it. Parts
    are called one after the other, not within each other.
    """

    def __init__(self) -> None:
        self._num_threads: int | None = None  # torch's before a call, during that call

    def bound(self, module: nn.Module, operations: int) -> None:
        """Limit the threads of a module, whose first input has a row for each token.

        Args:
            module: a part of the model, or the model.
            operations: of one row.
        """
        module.register_forward_pre_hook(partial(self._begin, operations))
        module.register_forward_hook(self._end, always_call=True)

    def _begin(self, operations: int, module: nn.Module, inputs: tuple) -> None:
        # still set: Ctrl-C has ended the last call, and torch calls no hook then
        num_threads = self._num_threads or torch.get_num_threads()
        self._num_threads = num_threads
        chosen = threads_for(operations * len(inputs[0]), num_threads)
        if chosen != torch.get_num_threads():
            torch.set_num_threads(chosen)

    def _end(self, module: nn.Module, inputs: tuple, output: object) -> None:
        num_threads = self._num_threads
        self._num_threads = None
        if num_threads is not None and num_threads != torch.get_num_threads():
            torch.set_num_threads(num_threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: torch has one thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


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
