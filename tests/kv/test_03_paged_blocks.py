"""Block pool, block table and manager: random histories, and the edges that bite."""

import pytest
from helpers import arrive, can_admit, compute, examples, sequence
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, slots_of
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit
from minivllm.utils.math_utils import cdiv


class AnyHistory(RuleBasedStateMachine):
    """Sequences come, grow and go in any order; the invariants hold after every move.

    Few different tokens, so that prefixes meet often. ``content`` is what each slot was last
    written with: a hit must find exactly the prefix that it stands for.
    """

    sequences = Bundle("sequences")
    caching = True
    size = 3

    def __init__(self):
        super().__init__()
        self.manager = KVCacheManager(12, self.size, enable_prefix_caching=self.caching)
        self.content: dict[int, tuple] = {}  # slot -> the prefix whose K and V are in it
        self.alive = {}
        self.count = 0

    def _write(self, seq, start):
        table = self.manager.block_tables[seq.seq_id]
        for p in range(start, seq.num_computed_tokens):
            block = table.blocks[p // self.size]
            assert block.ref_cnt == 1, "a shared block is written"
            self.content[table.slot(p)] = tuple(seq.token_ids[: p + 1])

    @rule(target=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def arrive(self, tokens):
        self.count += 1
        seq = sequence(f"s{self.count}", tokens)
        hit = self.manager.get_computed_blocks(seq)
        free = self.manager.block_pool.num_free_blocks
        assert hit.num_tokens == len(hit.blocks) * self.size < len(tokens)
        if not can_admit(self.manager, seq, hit):
            assert cdiv(len(tokens), self.size) > free - sum(b.ref_cnt == 0 for b in hit.blocks)
            return None
        self.manager.allocate_new_computed_blocks(seq, hit)
        start = seq.num_computed_tokens
        assert compute(self.manager, seq) is not None, "admitted, but there is no room"
        self.alive[seq.seq_id] = seq
        self._write(seq, start)
        return seq

    @rule(seq=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=7))
    def grow(self, seq, tokens):
        if seq is None:
            return
        free = self.manager.block_pool.num_free_blocks
        start = seq.num_computed_tokens
        missing = cdiv(start + len(tokens), self.size) - cdiv(start, self.size)
        if missing > free:
            before = self.manager.get_block_ids(seq.seq_id)
            seq.token_ids += tokens
            assert compute(self.manager, seq) is None
            del seq.token_ids[-len(tokens) :]
            assert self.manager.get_block_ids(seq.seq_id) == before
            assert self.manager.block_pool.num_free_blocks == free
        else:
            seq.token_ids += tokens
            assert len(compute(self.manager, seq)) == missing
            self._write(seq, start)

    @rule(seq=consumes(sequences))
    def leave(self, seq):
        if seq is not None:
            self.manager.free(seq)
            del self.alive[seq.seq_id]

    @rule()
    def reset(self):
        assert self.manager.reset_prefix_cache() == (not self.alive)

    @invariant()
    def books_balance(self):
        self.manager.check_integrity()
        held = {b for seq_id in self.alive for b in self.manager.get_block_ids(seq_id)}
        assert 0 not in held
        assert len(held) + self.manager.block_pool.num_free_blocks == 11

    @invariant()
    def every_slot_holds_what_its_owner_computed(self):
        for seq in self.alive.values():
            table = self.manager.block_tables[seq.seq_id]
            assert len(table.blocks) == cdiv(seq.num_computed_tokens, self.size)
            for p in range(seq.num_computed_tokens):
                assert self.content[table.slot(p)] == tuple(seq.token_ids[: p + 1])

    def teardown(self):
        for seq in list(self.alive.values()):
            self.manager.free(seq)
        assert self.manager.block_pool.num_free_blocks == 11


class AnyHistoryWithoutCache(AnyHistory):
    """The same with nothing to be found again: no block ever has two owners."""

    caching = False

    @invariant()
    def nothing_is_shared(self):
        assert all(block.ref_cnt <= 1 for block in self.manager.block_pool.blocks)


for machine in (AnyHistory, AnyHistoryWithoutCache):
    machine.TestCase.settings = examples(60, steps=30)
TestAnyHistory = AnyHistory.TestCase
TestAnyHistoryWithoutCache = AnyHistoryWithoutCache.TestCase


def test_blocks_come_in_id_order_and_the_null_block_never():
    pool = BlockPool(5)
    assert [b.block_id for b in pool.get_new_blocks(4)] == [1, 2, 3, 4]
    assert pool.num_free_blocks == 0


def test_too_few_free_blocks_change_nothing():
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    with pytest.raises(ValueError, match="cannot allocate 2 blocks: 1 are free"):
        pool.get_new_blocks(2)
    assert pool.num_free_blocks == 1


def test_freed_blocks_are_reused_first_and_the_last_block_comes_out_first():
    manager = KVCacheManager(num_blocks=8, block_size=2)
    manager.free(arrive(manager, "a", 6))  # blocks 1, 2, 3
    seq = arrive(manager, "b", 8)
    assert manager.get_block_ids(seq.seq_id) == [3, 2, 1, 4]


@pytest.mark.parametrize("times", [1, 2])
def test_a_double_free_raises_and_changes_nothing(times):
    pool = BlockPool(4)
    block = pool.get_new_blocks(1)[0]
    if times == 1:
        pool.free_blocks([block])
        with pytest.raises(ValueError, match="block 1 is freed twice"):
            pool.free_blocks([block])
        assert pool.num_free_blocks == 3
    else:
        with pytest.raises(ValueError, match="block 1 is freed twice"):
            pool.free_blocks([block, block])
        assert (block.ref_cnt, pool.num_free_blocks) == (1, 2)


def test_the_null_block_cannot_be_freed():
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="null block"):
        pool.free_blocks([pool.null_block])


def test_a_pool_needs_one_usable_block():
    with pytest.raises(ValueError, match="num_blocks must be at least 2"):
        BlockPool(1)


def test_freeing_a_sequence_without_blocks_is_no_error():
    KVCacheManager(num_blocks=4, block_size=2).free(sequence("nobody", 3))


def test_a_lost_block_is_noticed():
    manager = KVCacheManager(num_blocks=6, block_size=2)
    arrive(manager, "a", 4)
    manager.block_tables["a"].blocks.pop()
    with pytest.raises(AssertionError, match="block 2 has ref_cnt 1"):
        manager.check_integrity()


def test_a_block_queued_while_in_use_is_noticed():
    manager = KVCacheManager(num_blocks=6, block_size=2)
    arrive(manager, "a", 4)
    manager.block_pool.free_block_queue.append([manager.block_pool.blocks[1]])
    with pytest.raises(AssertionError, match="free queue"):
        manager.check_integrity()


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_the_boundary_of_a_block_plus_and_minus_one(block_size, around):
    manager = KVCacheManager(num_blocks=40, block_size=block_size)
    n = 2 * block_size + around
    seq = sequence("a", n + 1)
    manager.allocate_new_computed_blocks(seq, CacheHit())
    compute(manager, seq, n)
    assert len(manager.get_block_ids("a")) == -(-n // block_size)
    assert len(compute(manager, seq, 1)) == (n % block_size == 0)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=9, unique=True), st.integers(1, 7))
def test_every_position_has_a_slot_of_its_own(block_ids, block_size):
    pool = BlockPool(100)
    table = BlockTable(block_size)
    table.blocks = [pool.blocks[i] for i in block_ids]
    total = len(block_ids) * block_size
    slots = slots_of(table.block_ids, 0, total, block_size)
    assert slots == [table.slot(p) for p in range(total)]
    assert len(set(slots)) == total
    assert [s // block_size for s in slots] == [b for b in block_ids for _ in range(block_size)]
    for outside in (-1, total):
        with pytest.raises(IndexError, match="outside"):
            table.slot(outside)
