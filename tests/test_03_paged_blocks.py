"""Block pool, block table and manager: random histories, and the edges that bite."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, cdiv, slots_of
from minivllm.kv.manager import KVCacheManager


class AnyHistory(RuleBasedStateMachine):
    """Sequences come, grow and go in any order; the books balance after every move."""

    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.manager = KVCacheManager(num_blocks=12, block_size=3)
        self.length: dict[str, int] = {}
        self.count = 0

    @rule(target=sequences, n=st.integers(1, 20))
    def arrive(self, n):
        self.count += 1
        seq_id = f"s{self.count}"
        self.length[seq_id] = 0
        self._grow(seq_id, n)
        return seq_id

    @rule(seq_id=sequences, n=st.integers(1, 10))
    def grow(self, seq_id, n):
        self._grow(seq_id, n)

    def _grow(self, seq_id, n):
        free = self.manager.block_pool.num_free_blocks
        old = self.length[seq_id]
        missing = cdiv(old + n, 3) - cdiv(old, 3)
        new = self.manager.allocate_slots(seq_id, old + n)
        if missing > free:
            assert new is None
            assert self.manager.block_pool.num_free_blocks == free
        else:
            assert len(new) == missing
            self.length[seq_id] = old + n

    @rule(seq_id=consumes(sequences))
    def leave(self, seq_id):
        self.manager.free(seq_id)
        del self.length[seq_id]

    @invariant()
    def books_balance(self):
        self.manager.check_integrity()
        held = [b for t in self.manager.block_tables.values() for b in t.block_ids]
        assert 0 not in held
        assert len(held) == len(set(held)), "a block has two owners"
        assert len(held) + self.manager.block_pool.num_free_blocks == 11
        for seq_id, n in self.length.items():
            if n:
                assert len(self.manager.get_block_ids(seq_id)) == cdiv(n, 3)

    def teardown(self):
        for seq_id in list(self.manager.block_tables):
            self.manager.free(seq_id)
        assert self.manager.block_pool.num_free_blocks == 11


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase


def test_blocks_come_in_id_order_and_the_null_block_never():
    pool = BlockPool(5)
    assert [b.block_id for b in pool.allocate(4)] == [1, 2, 3, 4]
    assert pool.num_free_blocks == 0


def test_too_few_free_blocks_change_nothing():
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(ValueError, match="cannot allocate 2 blocks: 1 are free"):
        pool.allocate(2)
    assert pool.num_free_blocks == 1


def test_freed_blocks_are_reused_first_and_the_last_block_comes_out_first():
    manager = KVCacheManager(num_blocks=8, block_size=2)
    manager.allocate_slots("a", 6)  # blocks 1, 2, 3
    manager.free("a")
    assert manager.allocate_slots("b", 8) == [3, 2, 1, 4]


@pytest.mark.parametrize("times", [1, 2])
def test_a_double_free_raises_and_changes_nothing(times):
    pool = BlockPool(4)
    block = pool.allocate(1)[0]
    if times == 1:
        pool.free([block])
        with pytest.raises(ValueError, match="block 1 is freed twice"):
            pool.free([block])
        assert pool.num_free_blocks == 3
    else:
        with pytest.raises(ValueError, match="block 1 is freed twice"):
            pool.free([block, block])
        assert (block.ref_cnt, pool.num_free_blocks) == (1, 2)


def test_the_null_block_cannot_be_freed():
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="null block"):
        pool.free([pool.null_block])


def test_a_pool_needs_one_usable_block():
    with pytest.raises(ValueError, match="num_blocks must be at least 2"):
        BlockPool(1)


def test_freeing_a_sequence_without_blocks_is_no_error():
    KVCacheManager(num_blocks=4, block_size=2).free("nobody")


def test_a_lost_block_is_noticed():
    manager = KVCacheManager(num_blocks=6, block_size=2)
    manager.allocate_slots("a", 4)
    manager.block_tables["a"].blocks.pop()
    with pytest.raises(AssertionError, match="block 2 has ref_cnt 1"):
        manager.check_integrity()


def test_a_block_queued_while_in_use_is_noticed():
    manager = KVCacheManager(num_blocks=6, block_size=2)
    manager.allocate_slots("a", 4)
    manager.block_pool.free_queue.append(manager.block_pool.blocks[1])
    with pytest.raises(AssertionError, match="free queue"):
        manager.check_integrity()


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_the_boundary_of_a_block_plus_and_minus_one(block_size, around):
    manager = KVCacheManager(num_blocks=40, block_size=block_size)
    n = 2 * block_size + around
    manager.allocate_slots("a", n)
    expected = 2 if around <= 0 else 3
    if block_size == 1:
        expected = n
    assert len(manager.get_block_ids("a")) == expected
    assert manager.allocate_slots("a", n) == []


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
