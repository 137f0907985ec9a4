"""Contiguous KV cache: one slab of slots per request, as servers allocated it before paging.

The kernels of FasterTransformer and Orca read K and V as one tensor per request, so its room had to
be reserved at once and in one piece, before the length of the answer was known. What that costs
is counted here (PagedAttention paper, Kwon et al. 2023, sections 1, 3.1 and 6.1, figure 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minivllm.kv.prefix_cache import CacheHit
from minivllm.kv.swap_space import SwapSpace
from minivllm.lab.contiguous.slab_pool import BuddyPool, FirstFitPool, SlabPool
from minivllm.request import Sequence
from minivllm.utils.math_utils import next_power_of_2
from minivllm.utils.validation import check, is_int


class SlotUsage(NamedTuple):
    """Slots of a pool by use, at one moment. The counts add up to all slots."""

    tokens: float  # hold K and V of a token
    reserved: float  # held for a request that will fill them later
    internal: float  # held for a request that will never fill them
    rounding: float  # handed out with a slab, beyond what was asked for: the buddy allocator's cut
    external: float  # free, and enough for the next waiting request if they were in one piece
    free: float  # free otherwise: no request waits, or even all of them would be too few

    @property
    def held(self) -> float:
        """Slots that are allocated to requests."""
        return self.tokens + self.reserved + self.internal + self.rounding


@dataclass(slots=True)
class Slab:
    """One sequence's contiguous slots, in place of a block table."""

    blocks: range  # its slots; a block here is one slot
    num_reserved: int  # of these, those that were asked for
    num_tokens_at_end: int  # how many will ever hold a token
    num_tokens: int = 0  # how many do, counting those that the planned step writes


RESERVATIONS = ("exact", "pow2", "max")
ALLOCATORS = {"buddy": BuddyPool, "first_fit": FirstFitPool}


class ContiguousKVCacheManager:
    """A cache manager with the methods of ``KVCacheManager`` and slabs instead of blocks.

    A request is admitted when a slab for its whole life fits, so no request is ever preempted. The
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

    def max_num_blocks(self, num_prompt: int, num_tokens: int, n: int) -> int:
        """Slots of a request at its longest. Samples cannot share slabs: ``n > 1`` is refused."""
        check(n == 1, "n", n, "1 on contiguous slabs, where samples cannot share their prompt")
        return num_tokens

    def num_slots_to_reserve(self, seq: Sequence) -> int:
        """Slots to reserve by the rule: for the prompt and for the answer to come."""
        max_tokens = seq.request.sampling_params.max_tokens
        if self.reservation == "max" or max_tokens is None:
            return self.max_model_len
        if self.reservation == "exact":
            return self._num_tokens_at_end(seq)
        return min(seq.num_prompt_tokens + next_power_of_2(max_tokens), self.max_model_len)

    def _num_tokens_at_end(self, seq: Sequence) -> int:
        """Number of tokens with K and V at the end: all but the last, which no token reads."""
        max_tokens = seq.request.sampling_params.max_tokens or self.max_model_len
        return min(self.max_model_len, seq.num_prompt_tokens + max_tokens) - 1

    def get_computed_blocks(self, seq: Sequence) -> CacheHit:
        """No cache hit: slabs are not shared."""
        return CacheHit()

    def get_num_blocks_to_allocate(self, seq: Sequence, hit: CacheHit) -> int:
        """Slots of a slab for the whole request; more than there are if no free piece will do."""
        num_slots = self.num_slots_to_reserve(seq)
        if not self.block_pool.can_allocate(num_slots):
            return self.block_pool.num_usable_blocks + 1
        return self.block_pool.slab_size(num_slots)

    def can_fit_full_sequence(
        self, seq: Sequence, hit: CacheHit, num_new_tokens: int = 0, num_reserved_blocks: int = 0
    ) -> bool:
        """True if a free piece is large enough for the whole request."""
        needed = num_reserved_blocks + self.get_num_blocks_to_allocate(seq, hit)
        return needed <= self.block_pool.num_free_blocks

    def num_missing_blocks(self, seq: Sequence) -> int:
        """Always 0: an admitted sequence has its whole slab."""
        return 0

    def allocate_new_computed_blocks(self, seq: Sequence, hit: CacheHit) -> None:
        """Reserve a slab for a sequence.

        Raises:
            ValueError: if it has one, or no piece is large enough; then nothing has changed.
        """
        if seq.seq_id in self.block_tables:
            raise ValueError(f"sequence {seq.seq_id!r} has a slab already.")
        num_reserved = self.num_slots_to_reserve(seq)
        slots = self.block_pool.allocate(num_reserved)
        slab = Slab(slots, num_reserved, self._num_tokens_at_end(seq))
        self.block_tables[seq.seq_id] = slab
        seq.num_computed_tokens = 0

    def allocate_slots(self, seq: Sequence, num_new_tokens: int, copies: list) -> list[int]:
        """Count the slots that this step fills; they were reserved at admission.

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

    def ids_by_group(self, block_ids: list[int]) -> tuple[list[int], ...]:
        """Slots as the plan has them, a list for each KV cache group: here there is one."""
        return (block_ids,)

    def free(self, seq: Sequence) -> None:
        """Free a sequence's slab. A sequence that holds none is no error."""
        if seq.seq_id in self.block_tables:
            self.block_pool.free(self.block_tables.pop(seq.seq_id).blocks)

    def reset(self) -> None:
        """Free every slab, after a step that failed."""
        self.block_tables.clear()
        self.block_pool.reset()

    def slot_usage(self, next_seq: Sequence | None = None) -> SlotUsage:
        """Count the slots by use.

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
        free = self.block_pool.num_free_blocks
        external = 0
        if next_seq is not None:
            num_slots = self.num_slots_to_reserve(next_seq)
            if num_slots <= free and not self.block_pool.can_allocate(num_slots):
                external = free
                free = 0
        return SlotUsage(
            tokens=tokens,
            reserved=reserved,
            internal=internal,
            rounding=rounding,
            external=external,
            free=free,
        )

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a slot is lost, held by two, or counted twice."""
        self.block_pool.check_integrity()
        held = sorted(slab.blocks.start for slab in self.block_tables.values())
        assert held == sorted(slab.start for slab in self.block_pool.slabs), held
        usage = self.slot_usage()
        assert min(usage) >= 0, usage
        assert sum(usage) == self.block_pool.num_usable_blocks, usage
