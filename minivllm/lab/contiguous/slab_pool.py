"""Slab pools: contiguous slots, allocated in one piece per request. First fit, or buddies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort

from minivllm.utils.math_utils import next_power_of_2
from minivllm.utils.validation import check, is_int


class SlabPool(ABC):
    """Contiguous slots, allocated in slabs; ``_take`` and ``_put_back`` decide where.

    To the scheduler a slot is a block of one position; hence the names of two counts.
    """

    def __init__(self, num_slots: int):
        check(is_int(num_slots, 1), "num_slots", num_slots, "an integer of at least 1")
        self.num_usable_blocks = num_slots
        self.reset()

    def reset(self) -> None:
        """Make all slots free."""
        self.num_free_blocks = self.num_usable_blocks
        self.free_pieces = self._pieces(self.num_usable_blocks)  # in the order of their addresses
        self.slabs: set[range] = set()  # the allocated ones

    def slab_size(self, num_slots: int) -> int:
        """Number of slots of a slab for ``num_slots``."""
        return num_slots

    def can_allocate(self, num_slots: int) -> bool:
        """True if a free piece is large enough."""
        size = self.slab_size(num_slots)
        return any(len(piece) >= size for piece in self.free_pieces)

    def allocate(self, num_slots: int) -> range:
        """Allocate a slab of at least ``num_slots`` slots.

        Raises:
            ValueError: if no free piece is large enough; then nothing has changed.
        """
        if not self.can_allocate(num_slots):
            raise ValueError(
                f"cannot allocate a slab of {self.slab_size(num_slots)} slots: "
                f"{self.num_free_blocks} are free, in pieces of {[*map(len, self.free_pieces)]}."
            )
        slab = self._take(self.slab_size(num_slots))
        self.slabs.add(slab)
        self.num_free_blocks -= len(slab)
        return slab

    def free(self, slab: range) -> None:
        """Free a slab; it is merged with its free neighbours.

        Raises:
            ValueError: if it is not allocated (a double free); then nothing has changed.
        """
        if slab not in self.slabs:
            raise ValueError(f"slots {slab.start} to {slab.stop - 1} are freed, but not held.")
        self.slabs.remove(slab)
        self.num_free_blocks += len(slab)
        self._put_back(slab)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slabs and free pieces cover the pool exactly once."""
        position = 0
        for part in sorted([*self.slabs, *self.free_pieces], key=lambda part: part.start):
            assert part.start == position, f"slots from {position} to {part.start} overlap or leak"
            position = part.stop
        assert position == self.num_usable_blocks, f"slots from {position} on are lost"
        assert self.num_free_blocks == sum(map(len, self.free_pieces)), "free slots are miscounted"

    @abstractmethod
    def _pieces(self, num_slots: int) -> list[range]:
        """Free pieces of an empty pool."""

    @abstractmethod
    def _take(self, num_slots: int) -> range:
        """Cut a slab out of a free piece; one is large enough."""

    @abstractmethod
    def _put_back(self, slab: range) -> None:
        """Add a slab to the free pieces, merged with its free neighbours."""

    def _insert(self, piece: range) -> None:
        insort(self.free_pieces, piece, key=lambda p: p.start)


class FirstFitPool(SlabPool):
    """First fit: a slab is cut off the first piece that is large enough; neighbours are merged."""

    def _pieces(self, num_slots: int) -> list[range]:
        return [range(num_slots)]

    def _take(self, size: int) -> range:
        piece = next(p for p in self.free_pieces if len(p) >= size)
        self.free_pieces.remove(piece)
        if len(piece) > size:
            self._insert(piece[size:])
        return piece[:size]

    def _put_back(self, slab: range) -> None:
        for piece in list(self.free_pieces):
            if piece.stop == slab.start or slab.stop == piece.start:
                self.free_pieces.remove(piece)
                slab = range(min(slab.start, piece.start), max(slab.stop, piece.stop))
        self._insert(slab)


class BuddyPool(SlabPool):
    """Buddy allocator: slabs are powers of two, cut by halving; two free halves are merged.

    A slab for 1,025 slots takes 2,048. A pool that is no power of two begins as one piece for each
    bit of its size, the largest first.
    """

    def _pieces(self, num_slots: int) -> list[range]:
        pieces = []
        start = 0
        for bit in reversed(range(num_slots.bit_length())):
            if num_slots & (1 << bit):
                pieces.append(range(start, start + (1 << bit)))
                start += 1 << bit
        return pieces

    def slab_size(self, num_slots: int) -> int:
        return next_power_of_2(num_slots)

    def _take(self, size: int) -> range:
        # the smallest piece that will do, so that large ones stay whole
        piece = min((p for p in self.free_pieces if len(p) >= size), key=len)
        self.free_pieces.remove(piece)
        while len(piece) > size:
            half = len(piece) // 2
            self._insert(piece[half:])
            piece = piece[:half]
        return piece

    def _put_back(self, slab: range) -> None:
        while (buddy := self._buddy(slab)) in self.free_pieces:
            self.free_pieces.remove(buddy)
            slab = range(min(slab.start, buddy.start), max(slab.stop, buddy.stop))
        self._insert(slab)

    @staticmethod
    def _buddy(slab: range) -> range:
        start = slab.start ^ len(slab)  # the neighbour with which it was one piece
        return range(start, start + len(slab))
