"""The "before" picture: one contiguous slab of KV slots per request, as servers did before paging.

The kernels of FasterTransformer and Orca read K and V as one tensor per request, so its room had to
be reserved at once and in one piece, before anybody knew how long the answer would be. What that
costs is counted here (PagedAttention paper, Kwon et al. 2023, sections 1, 3.1 and 6.1, figure 2).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import NamedTuple

from minivllm.kv.swap_space import SwapSpace
from minivllm.request import Sequence
from minivllm.validation import check, is_int


class SlabPool:
    """``num_slots`` slots in a row, handed out in slabs. Where? ``_take`` and ``_put_back`` decide.

    To the scheduler a slot is a block of one position; hence the names of two counts.
    """

    def __init__(self, num_slots: int):
        check(is_int(num_slots, 1), "num_slots", num_slots, "an integer of at least 1")
        self.num_usable_blocks = self.num_free_blocks = num_slots
        self.free_pieces: list[range] = []  # in the order of their addresses
        self.slabs: set[range] = set()  # those that somebody holds

    def slab_size(self, num_slots: int) -> int:
        """How many slots a slab for ``num_slots`` takes."""
        return num_slots

    def can_allocate(self, num_slots: int) -> bool:
        """Is some free piece large enough?"""
        size = self.slab_size(num_slots)
        return any(len(piece) >= size for piece in self.free_pieces)

    def allocate(self, num_slots: int) -> range:
        """Take a slab of at least ``num_slots`` slots.

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
        """Give a slab back; it grows together with its free neighbours.

        Raises:
            ValueError: if nobody holds it (a double free); then nothing has changed.
        """
        if slab not in self.slabs:
            raise ValueError(f"slots {slab.start} to {slab.stop - 1} are freed, but not held.")
        self.slabs.remove(slab)
        self.num_free_blocks += len(slab)
        self._put_back(slab)  # a subclass's, as is _take

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slabs and free pieces cover the pool exactly once."""
        position = 0
        for part in sorted([*self.slabs, *self.free_pieces], key=lambda part: part.start):
            assert part.start == position, f"slots from {position} to {part.start} overlap or leak"
            position = part.stop
        assert position == self.num_usable_blocks, f"slots from {position} on are lost"
        assert self.num_free_blocks == sum(map(len, self.free_pieces)), "free slots are miscounted"

    def _insert(self, piece: range) -> None:
        insort(self.free_pieces, piece, key=lambda p: p.start)


class FirstFitPool(SlabPool):
    """A slab is cut off the first piece that is large enough; neighbours always join again."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self.free_pieces = [range(num_slots)]

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
    """Slabs are powers of two, cut by halving; two halves of one piece (buddies) join again.

    A slab for 1,025 slots takes 2,048. A pool that is no power of two begins as one piece for each
    bit of its size, the largest first.
    """

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        start = 0
        for bit in reversed(range(num_slots.bit_length())):
            if num_slots & (1 << bit):
                self.free_pieces.append(range(start, start + (1 << bit)))
                start += 1 << bit

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


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n`` (which is at least 1)."""
    return 1 << (n - 1).bit_length()


class SlotUsage(NamedTuple):
    """What the slots of a pool are doing at one moment. The counts add up to all of them."""

    tokens: float  # hold K and V of a token
    reserved: float  # held for a request that will fill them later
    internal: float  # held for a request that will never fill them
    rounding: float  # handed out with a slab, beyond what was asked for: the buddy allocator's cut
    external: float  # free, and enough for the next waiting request if they were in one piece
    free: float  # free otherwise: nobody waits, or even all of them would be too few

    @property
    def held(self) -> float:
        """Slots that somebody has taken."""
        return self.tokens + self.reserved + self.internal + self.rounding


@dataclass(slots=True)
class Slab:
    """What a sequence has instead of a block table."""

    blocks: range  # its slots; a block here is one slot
    num_reserved: int  # of these, those that were asked for
    num_tokens_at_end: int  # how many will ever hold a token
    num_tokens: int = 0  # how many do, counting those that the planned step writes


RESERVATIONS = ("exact", "pow2", "max")
ALLOCATORS = {"buddy": BuddyPool, "first_fit": FirstFitPool}


class ContiguousKVCacheManager:
    """Answers the scheduler's questions like ``KVCacheManager``, with slabs instead of blocks.

    A request is admitted when a slab for its whole life fits, so nobody is ever preempted. The
    paper's three baselines in one:

    * ``exact`` (Orca (Oracle)): knows how long the answer will be. Here that is ``max_tokens``, so
      it is the truth only for requests that ignore the end-of-sequence token, as simulated ones do.
    * ``pow2`` (Orca (Pow2)): the answer's room is rounded up to a power of two, at most twice it.
    * ``max`` (Orca (Max)): every request may become ``max_model_len`` long.

    Args:
        num_slots: token positions in the pool.
        max_model_len: the longest sequence, prompt and output.
        reservation: "exact", "pow2" or "max".
        allocator: "buddy" (the paper's baseline) or "first_fit".

    Raises:
        ValueError: for another name, or a pool that has no place for the longest sequence.
    """

    block_size = 1
    prefix_cache = None  # nothing can be shared

    def __init__(
        self, num_slots: int, max_model_len: int, reservation: str = "max", allocator: str = "buddy"
    ):
        for name, value, known in (
            ("reservation", reservation, RESERVATIONS),
            ("allocator", allocator, tuple(ALLOCATORS)),
        ):
            check(value in known, name, value, "one of " + ", ".join(map(repr, known)))
        self.block_pool: SlabPool = ALLOCATORS[allocator](num_slots)
        self.max_model_len = max_model_len
        self.reservation = reservation
        self.block_tables: dict[str, Slab] = {}
        self.swap_space = SwapSpace(0)  # a slab never gives way
        check(
            is_int(max_model_len, 2) and self.block_pool.can_allocate(max_model_len),
            "max_model_len",
            max_model_len,
            f"an integer of at least 2 with room in one piece of the {num_slots} slots",
        )

    def num_blocks_at_most(self, num_prompt: int, num_tokens: int, n: int) -> int:
        """The slots of a request at its longest. Samples cannot share, so several are refused."""
        check(n == 1, "n", n, "1 on contiguous slabs, where samples cannot share their prompt")
        return num_tokens

    def num_slots_to_reserve(self, seq: Sequence) -> int:
        """What the rule asks for: slots for the prompt and for the answer to come."""
        max_tokens = seq.request.sampling_params.max_tokens
        if self.reservation == "max" or max_tokens is None:
            return self.max_model_len
        if self.reservation == "exact":
            return self._num_tokens_at_end(seq)
        return min(seq.num_prompt_tokens + next_power_of_2(max_tokens), self.max_model_len)

    def _num_tokens_at_end(self, seq: Sequence) -> int:
        """How many tokens will have K and V in the end: all but the last, which none reads."""
        max_tokens = seq.request.sampling_params.max_tokens or self.max_model_len
        return min(self.max_model_len, seq.num_prompt_tokens + max_tokens) - 1

    def get_computed_blocks(self, seq: Sequence) -> list:
        """Nothing is ever found again."""
        return []

    def count_query(self, seq: Sequence) -> None:
        """Nothing is ever looked up."""

    def num_blocks_to_admit(self, seq: Sequence, hit: list) -> int:
        """How many free slots a slab for its whole life takes; too many if no piece is as large."""
        num_slots = self.num_slots_to_reserve(seq)
        if not self.block_pool.can_allocate(num_slots):
            return self.block_pool.num_usable_blocks + 1
        return self.block_pool.slab_size(num_slots)

    def num_blocks_missing(self, seq: Sequence) -> int:
        """An admitted sequence lacks nothing."""
        return 0

    def admit(self, seq: Sequence, hit: list) -> None:
        """Reserve its slab.

        Raises:
            ValueError: if it has one, or no piece is large enough; then nothing has changed.
        """
        if seq.seq_id in self.block_tables:
            raise ValueError(f"sequence {seq.seq_id!r} has a slab already.")
        num_reserved = self.num_slots_to_reserve(seq)
        slots = self.block_pool.allocate(num_reserved)
        self.block_tables[seq.seq_id] = Slab(slots, num_reserved, self._num_tokens_at_end(seq))
        seq.num_computed_tokens = 0

    def allocate_slots(self, seq: Sequence, num_new_tokens: int, copies: list) -> list[int]:
        """The slots are there already; only count how many this step fills.

        Raises:
            ValueError: if the sequence outgrows what was reserved.
        """
        slab = self.block_tables[seq.seq_id]
        num_tokens = seq.num_computed_tokens + num_new_tokens
        if num_tokens > slab.num_reserved:
            raise ValueError(
                f"sequence {seq.seq_id!r} needs {num_tokens} slots, but {slab.num_reserved} are "
                "reserved for it."
            )
        slab.num_tokens = num_tokens
        return []

    def get_block_ids(self, seq_id: str) -> list[int]:
        """The slots of a sequence, in the order of its positions."""
        return list(self.block_tables[seq_id].blocks)

    def free(self, seq: Sequence) -> None:
        """Take its slab back. A sequence that holds none is no error."""
        slab = self.block_tables.pop(seq.seq_id, None)
        if slab is not None:
            self.block_pool.free(slab.blocks)

    def slot_usage(self, next_seq: Sequence | None = None) -> SlotUsage:
        """What every slot is doing now.

        The buddy allocator's rounding is told apart: the request never asked for it, so it is not
        *internal* waste, nor is it free. The paper's figure 2 must count it as external (its Oracle
        bar has 36.6 % of that and no internal waste).

        Args:
            next_seq: the first that waits, if any: free slots are external waste if they would be
                enough for it in one piece.
        """
        tokens = reserved = internal = rounding = 0
        for slab in self.block_tables.values():
            tokens += slab.num_tokens
            reserved += slab.num_tokens_at_end - slab.num_tokens
            internal += slab.num_reserved - slab.num_tokens_at_end
            rounding += len(slab.blocks) - slab.num_reserved
        free, external = self.block_pool.num_free_blocks, 0
        if next_seq is not None:
            num_slots = self.num_slots_to_reserve(next_seq)
            if num_slots <= free and not self.block_pool.can_allocate(num_slots):
                free, external = 0, free
        return SlotUsage(tokens, reserved, internal, rounding, external, free)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a slot is lost, held by two, or counted twice."""
        self.block_pool.check_integrity()
        held = sorted(slab.blocks.start for slab in self.block_tables.values())
        assert held == sorted(slab.start for slab in self.block_pool.slabs), held
        usage = self.slot_usage()
        assert min(usage) >= 0, usage
        assert sum(usage) == self.block_pool.num_usable_blocks, usage
