"""Arena: a model's weights side by side, in pages of 2 MiB where the system has them.

A processor keeps the places of some thousand pages at hand. Of pages of 4 KiB that is a few MiB,
and a step reads hundreds: it would look places up all the time. Linux gives larger pages to whom
asks (``madvise``), for memory that fills them.
"""

from __future__ import annotations

import mmap
from functools import cache

import numpy as np
import torch
from torch import nn

from minivllm.logger import init_logger

logger = init_logger(__name__)

HUGE_PAGE = 2**21
_CHUNK = 2**28  # bytes that are reserved at a time: memory only when they are written
_LINE = 64  # a cache line: where each weight begins


class Arena:
    """Memory that only grows; it is freed when the last tensor in it is."""

    def __init__(self) -> None:
        self._free: torch.Tensor = torch.empty(0, dtype=torch.uint8)  # the rest of a chunk

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy of a dense tensor in this memory, contiguous."""
        size = tensor.nbytes
        if size > len(self._free):
            self._free = _reserve(max(size, _CHUNK))
        copy = self._free[:size].view(tensor.dtype).view(tensor.shape)
        self._free = self._free[-(-size // _LINE) * _LINE :]
        return copy.copy_(tensor)

    def take(self, module: nn.Module) -> None:
        """Move a module's own parameters here, but for those in a layout of a library's."""
        for parameter in module.parameters(recurse=False):
            if parameter.layout == torch.strided:
                parameter.data = self.place(parameter.data)


def _reserve(size: int) -> torch.Tensor:
    """Reserve bytes that begin at a huge page and are advised to lie in such pages."""
    private = {}
    if hasattr(mmap, "MAP_PRIVATE"):  # shared memory has other rules
        private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE, **private)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError) as error:  # another system, or a kernel without them
        _tell(str(error))
    numbers = torch.from_numpy(np.frombuffer(memory, np.uint8))
    begin = -numbers.data_ptr() % HUGE_PAGE
    return numbers[begin : begin + size]


@cache
def _tell(error: str) -> None:
    """Log once why there are no huge pages."""
    logger.info("Weights lie in pages of the usual size: %s.", error)
