"""Slabs instead of blocks: the state of the "before" picture, and the paper's arithmetic."""

from itertools import pairwise

import pytest
from helpers import examples
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from minivllm.kv.prefix_cache import CacheHit
from minivllm.lab.contiguous.manager import (
    ALLOCATORS,
    RESERVATIONS,
    ContiguousKVCacheManager,
    SlotUsage,
)
from minivllm.lab.contiguous.slab_pool import BuddyPool, FirstFitPool, next_power_of_2
from minivllm.lab.sim.loop import fake_execute, run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.lab.sim.waste import NUM_SLOTS, PAPER, measure_waste
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams

MAX_MODEL_LEN = 24


def sequence(name, num_prompt, num_output):
    params = SamplingParams(max_tokens=num_output, ignore_eos=True)
    return Request(name, [1] * num_prompt, params).seqs[0]


class AnyHistory(RuleBasedStateMachine):
    """Requests come, grow and go in any order; every slot is in one place and in one class."""

    sequences = Bundle("sequences")
    reservation, allocator = "max", "buddy"
    num_slots = 75  # no power of two

    def __init__(self):
        super().__init__()
        self.manager = ContiguousKVCacheManager(
            self.num_slots, MAX_MODEL_LEN, self.reservation, self.allocator
        )
        self.alive = {}
        self.count = 0

    @rule(target=sequences, num_prompt=st.integers(1, 23), num_output=st.integers(1, 23))
    def arrive(self, num_prompt, num_output):
        self.count += 1
        seq = sequence(f"s{self.count}", num_prompt, num_output)
        pool = self.manager.block_pool
        before = pool.num_free_blocks
        if self.manager.get_num_blocks_to_allocate(seq, CacheHit()) > before:
            usage = self.manager.slot_usage(seq)
            enough = self.manager.num_slots_to_reserve(seq) <= before
            assert (usage.external > 0) == enough
            with pytest.raises(ValueError, match="cannot allocate a slab of"):
                self.manager.allocate_new_computed_blocks(seq, CacheHit())
            assert pool.num_free_blocks == before
            return None
        self.manager.allocate_new_computed_blocks(seq, CacheHit())
        size = len(self.manager.get_block_ids(seq.seq_id))
        assert before - pool.num_free_blocks == size
        assert size == pool.slab_size(self.manager.num_slots_to_reserve(seq))
        self.alive[seq.seq_id] = seq
        return seq

    @rule(seq=sequences, num_new=st.integers(1, 9))
    def grow(self, seq, num_new):
        if seq is None:
            return
        longest = min(MAX_MODEL_LEN, seq.num_prompt_tokens + seq.request.sampling_params.max_tokens)
        num_new = min(num_new, longest - 1 - seq.num_computed_tokens)
        if num_new > 0:
            assert self.manager.allocate_slots(seq, num_new, []) == []
            seq.num_computed_tokens += num_new

    @rule(seq=consumes(sequences))
    def leave(self, seq):
        if seq is not None:
            self.manager.free(seq)
            self.manager.free(seq)  # holds nothing any more: no error
            del self.alive[seq.seq_id]

    @invariant()
    def every_slot_is_in_one_place_and_in_one_class(self):
        self.manager.check_integrity()
        held = [slot for name in self.alive for slot in self.manager.get_block_ids(name)]
        assert len(held) == len(set(held)), "slabs overlap"
        assert len(held) + self.manager.block_pool.num_free_blocks == self.num_slots
        usage = self.manager.slot_usage()
        assert sum(usage) == self.num_slots
        assert min(usage) >= 0
        assert usage.held == len(held)
        assert usage.tokens == sum(seq.num_computed_tokens for seq in self.alive.values())
        if self.reservation == "exact":
            assert usage.internal == 0
        if self.allocator == "first_fit":
            assert usage.rounding == 0

    @invariant()
    def neighbours_have_joined(self):
        pieces = self.manager.block_pool.free_pieces
        if self.allocator == "first_fit":
            assert all(a.stop < b.start for a, b in pairwise(pieces))
        else:
            starts = {(p.start, len(p)) for p in pieces}
            assert not any((start ^ size, size) in starts for start, size in starts)

    def teardown(self):
        for seq in self.alive.values():
            self.manager.free(seq)
        self.manager.check_integrity()
        fresh = type(self.manager.block_pool)(self.num_slots)
        assert self.manager.block_pool.free_pieces == fresh.free_pieces, "something is left"


def history(reservation, allocator):
    machine = type(
        f"AnyHistory_{reservation}_{allocator}",
        (AnyHistory,),
        {"reservation": reservation, "allocator": allocator},
    )
    machine.TestCase.settings = examples(20, steps=25)
    return machine.TestCase


TestExactBuddy = history("exact", "buddy")
TestPow2Buddy = history("pow2", "buddy")
TestMaxBuddy = history("max", "buddy")
TestExactFirstFit = history("exact", "first_fit")
TestPow2FirstFit = history("pow2", "first_fit")
TestMaxFirstFit = history("max", "first_fit")


def test_first_fit_takes_the_first_gap_and_joins_neighbours():
    pool = FirstFitPool(10)
    a, b, c = pool.allocate(3), pool.allocate(2), pool.allocate(4)
    assert (a, b, c) == (range(3), range(3, 5), range(5, 9))
    pool.free(a)
    assert pool.allocate(1) == range(1)
    pool.free(c)
    assert pool.free_pieces == [range(1, 3), range(5, 10)]
    pool.free(b)
    assert pool.free_pieces == [range(1, 10)]


def test_buddies_split_and_join():
    pool = BuddyPool(16)
    a = pool.allocate(3)
    assert (a, pool.free_pieces) == (range(4), [range(4, 8), range(8, 16)])
    b = pool.allocate(4)
    assert b == range(4, 8), "the smallest piece that will do"
    pool.free(a)
    assert pool.free_pieces == [range(4), range(8, 16)], "its buddy is taken"
    pool.free(b)
    assert pool.free_pieces == [range(16)]


def test_a_buddy_pool_that_is_no_power_of_two():
    assert list(map(len, BuddyPool(22).free_pieces)) == [16, 4, 2]
    assert [next_power_of_2(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]


@pytest.mark.parametrize("allocator", ALLOCATORS.values())
def test_a_slab_freed_twice_or_too_large_is_refused(allocator):
    pool = allocator(8)
    slab = pool.allocate(3)
    with pytest.raises(ValueError, match=r"cannot allocate a slab of \d slots: \d are free, in pi"):
        pool.allocate(6)
    with pytest.raises(ValueError, match="slots 1 to 2 are freed, but not held"):
        pool.free(range(1, 3))
    pool.free(slab)
    with pytest.raises(ValueError, match=r"slots 0 to \d are freed, but not held"):
        pool.free(slab)
    pool.check_integrity()
    assert pool.num_free_blocks == 8


@pytest.mark.parametrize(
    ("reservation", "reserved", "internal"), [("exact", 32, 0), ("pow2", 40, 8), ("max", 64, 32)]
)
def test_every_class_of_waste_by_hand(reservation, reserved, internal):
    """A prompt of 8 and an answer of 25, whose last token needs no slot; 10 are in the cache."""
    manager = ContiguousKVCacheManager(100, 64, reservation, "buddy")
    seq = sequence("a", 8, 25)
    manager.allocate_new_computed_blocks(seq, CacheHit())
    manager.allocate_slots(seq, 10, [])
    size = next_power_of_2(reserved)
    expected = SlotUsage(10, 22, internal, size - reserved, 0, 100 - size)
    assert manager.slot_usage() == expected


def test_external_waste_is_enough_for_the_next_but_in_pieces():
    manager = ContiguousKVCacheManager(12, 6, "exact", "first_fit")
    seqs = [sequence(name, 3, 2) for name in "abc"]  # 4 slots each
    for seq in seqs:
        manager.allocate_new_computed_blocks(seq, CacheHit())
    manager.free(seqs[0])
    manager.free(seqs[2])
    assert manager.slot_usage(sequence("fits", 3, 2)).free == 8
    in_pieces = manager.slot_usage(sequence("in pieces", 5, 1))
    assert (in_pieces.external, in_pieces.free) == (8, 0)
    assert manager.slot_usage().free == 8, "no request waits"
    manager.allocate_new_computed_blocks(seqs[0], CacheHit())
    too_few = manager.slot_usage(sequence("too few", 5, 1))
    assert (too_few.external, too_few.free) == (0, 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, 8), "num_slots must be an integer of at least 1, got 0"),
        (
            (16, 17),
            "max_model_len must be an integer of at least 2 with room in one piece",
        ),
        ((24, 17, "max", "buddy"), "max_model_len must be"),
        ((16, 8, "half"), "reservation must be one of 'exact', 'pow2', 'max', got 'half'"),
        ((16, 8, "max", "slab"), "allocator must be one of 'buddy', 'first_fit', got 'slab'"),
    ],
)
def test_bad_input_is_refused_by_name(args, message):
    with pytest.raises(ValueError, match=message):
        ContiguousKVCacheManager(*args)


def test_a_sequence_cannot_have_two_slabs_or_outgrow_one():
    manager = ContiguousKVCacheManager(16, 8, "exact")
    seq = sequence("a", 3, 2)
    manager.allocate_new_computed_blocks(seq, CacheHit())
    with pytest.raises(ValueError, match="sequence 'a' has a slab already"):
        manager.allocate_new_computed_blocks(seq, CacheHit())
    with pytest.raises(ValueError, match="sequence 'a' needs 5 slots, but 4 are reserved for it"):
        manager.allocate_slots(seq, 5, [])
    manager.check_integrity()


@pytest.mark.parametrize("reservation", RESERVATIONS)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_real_scheduler_runs_on_slabs(reservation, allocator):
    """The same scheduler, and no preemption: a running request has all that it will need."""
    manager = ContiguousKVCacheManager(100, 32, reservation, allocator)
    scheduler = make_scheduler(manager, max_num_batched_tokens=24, max_num_seqs=8, max_model_len=32)
    requests = [
        Request(str(i), [i] * (1 + 7 * i % 13), SamplingParams(max_tokens=1 + 5 * i % 17))
        for i in range(20)
    ]

    def execute(scheduler, scheduler_output):
        scheduler.check_integrity()
        return fake_execute(scheduler, scheduler_output)

    for _ in run_steps(scheduler, requests, execute):
        scheduler.check_integrity()
    assert scheduler.num_preemptions == 0
    assert manager.block_pool.num_free_blocks == 100
    for request in requests:
        assert request.seqs[0].num_output_tokens == request.sampling_params.max_tokens


def test_several_samples_are_refused_on_slabs():
    manager = ContiguousKVCacheManager(100, 32)
    with pytest.raises(ValueError, match="n must be 1 on contiguous slabs"):
        manager.max_num_blocks(4, 8, 2)


@pytest.fixture(scope="module")
def waste():
    return {row.manager: row for row in measure_waste(250)}


@pytest.mark.slow
def test_the_papers_arithmetic(waste):
    """Figure 2: ours are within a few points of every number the paper gives."""
    assert NUM_SLOTS == 15_728
    assert list(waste) == list(PAPER)
    tokens = [row.measured.tokens for row in waste.values()]
    assert tokens == sorted(tokens), "max < pow2 < exact < paged"
    for row in waste.values():
        assert sum(row.measured) == pytest.approx(1)
        assert row.measured.tokens == pytest.approx(row.paper.tokens, abs=0.05)
        if row.paper.external is not None:
            assert row.measured.reserved == pytest.approx(row.paper.reserved, abs=0.05)
            assert row.measured.internal == pytest.approx(row.paper.internal, abs=0.1)
            assert row.external == pytest.approx(row.paper.external, abs=0.1)


@pytest.mark.slow
def test_blocks_waste_under_four_percent(waste):
    paged = waste["paged"]
    assert paged.waste_in_held < 0.04
    assert 1 - paged.measured.tokens < 0.05
    assert paged.measured.external == 0


def test_max_reservation_strands_what_is_less_than_a_slab(waste):
    """7 slabs of 2,048 fit into 15,728 slots, and 8.9 % are left: the paper's very number."""
    assert waste["contiguous-max"].measured.free == pytest.approx((15_728 - 7 * 2_048) / 15_728)
    assert waste["contiguous-exact"].measured.internal == 0
