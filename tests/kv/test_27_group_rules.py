"""KV cache groups by hand: what a window keeps, what a hit in it needs, what is worth finding."""

import pytest
from checked_memory import make_hybrid, make_specs
from helpers import arrive, compute, sequence

from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.groups.options import resolve_hash_block_size
from minivllm.kv.groups.swapping import HybridSwapper, make_swapper
from minivllm.kv.manager import KVCacheManager
from minivllm.trace import Trace
from minivllm.trace.records import BlocksFreed, BlocksSkipped


def admit(manager, name, token_ids):
    """A sequence with its hit, of which nothing more is computed yet."""
    seq = sequence(name, token_ids)
    manager.allocate_new_computed_blocks(seq, manager.get_computed_blocks(seq))
    return seq


def held(manager, seq):
    return [len(table.held_blocks) for table in manager.block_tables[seq.seq_id].tables]


def num_cached(manager):
    groups = [manager.prefix_cache.group_of(block) for block in manager.prefix_cache]
    return [groups.count(group) for group in range(len(manager.managers))]


# -- what is left behind -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "computed", "skipped"),
    [(9, 8, 0), (9, 11, 0), (9, 12, 1), (9, 15, 1), (9, 16, 2), (1, 4, 1), (1, 3, 0), (5, 4, 0)],
)
def test_blocks_below_the_window_of_the_next_token(window, computed, skipped):
    """Position ``c`` reads from ``c - W + 1`` on: of blocks of 4 those that end before it go."""
    manager = make_hybrid(windows=[None, window])
    full, sliding = manager.managers
    assert sliding.num_skipped_blocks(computed) == skipped
    assert full.num_skipped_blocks(computed) == 0
    assert sliding.num_skipped_blocks(int(sliding.next_skip(skipped))) == skipped + 1
    assert sliding.num_skipped_blocks(int(sliding.next_skip(skipped)) - 1) == skipped


def test_a_chat_of_any_length_holds_the_window():
    manager = make_hybrid(60, [None, 9], budget=16)
    seq = admit(manager, "a", 30)
    most = manager.managers[1].max_blocks
    assert most == 7, "cdiv(9 - 1 + 16, 4) + 1"
    counts = []
    for num_tokens in (16, 14, *[1] * 30):
        if num_tokens == 1:
            seq.token_ids.append(7)
        assert compute(manager, seq, num_tokens) is not None
        manager.check_integrity()
        counts.append(held(manager, seq)[1])
    assert counts[:2] == [4, 6], "in chunks it is window and budget"
    assert set(counts[2:]) == {3}, "then the window alone"
    assert manager.get_block_ids("a")[1][:12] == [0] * 12


def test_blocks_stay_gone_though_there_is_no_room():
    """They leave before room is counted."""
    manager = make_hybrid(11, [None, 5], budget=16)
    seq = admit(manager, "a", 16)
    compute(manager, seq, 16)
    other = admit(manager, "b", 4)
    compute(manager, other, 4)
    assert manager.block_pool.num_free_blocks == 0
    seq.token_ids += [1] * 30
    assert manager.allocate_slots(seq, 30, []) is None
    assert manager.get_block_ids("a")[1][:3] == [0, 0, 0]
    assert manager.block_pool.num_free_blocks == 3
    manager.check_integrity()


def test_plans_in_flight_keep_what_they_read():
    manager = make_hybrid(60, [None, 5], budget=8, num_plans=2)
    seq = admit(manager, "a", 24)
    for in_flight, skipped in ((0, 0), (8, 0), (8, 1), (0, 5)):
        seq.num_in_flight_tokens = in_flight
        compute(manager, seq, 8 if seq.num_computed_tokens < 24 else 1)
        assert manager.block_tables["a"].tables[1].num_skipped == skipped
        manager.check_integrity()
        seq.token_ids.append(1)


def test_a_shorter_window_has_no_more_blocks_to_lose_than_there_are():
    """Rejected drafts: what was dropped was dropped on what is verified."""
    manager = make_hybrid(60, [None, 2], budget=16)
    seq = admit(manager, "a", 9)
    compute(manager, seq, 9)
    seq.token_ids.append(1)
    compute(manager, seq, 4)  # a token and three drafts
    seq.num_computed_tokens -= 3
    compute(manager, seq, 1)
    manager.check_integrity()
    assert held(manager, seq) == [4, 2]


# -- hits ----------------------------------------------------------------------------------------


def test_the_second_sibling_pays_and_the_third_does_not():
    """Retention 0: the first computes, the second learns where prefixes part, the third hits."""
    manager = make_hybrid(200, [None, 9])
    stem = list(range(40))
    hits = []
    for name in "abc":
        seq = sequence(name, [*stem, *[ord(name)] * 7])
        hit = manager.get_computed_blocks(seq)
        hits.append((hit.num_tokens, hit.junction))
        manager.allocate_new_computed_blocks(seq, hit)
        compute(manager, seq)
        manager.free(seq)
    assert hits == [(0, 0), (0, 40), (40, 0)]


@pytest.mark.parametrize(
    ("retention", "kept"), [(0, 2), (None, 11), (8, 11), (16, 6), (32, 4), (400, 2)]
)
def test_what_a_window_keeps_for_others(retention, kept):
    """Of 47 tokens, in blocks of 4, with a window of 9: a hit needs the last two blocks."""
    manager = make_hybrid(200, [None, 9], retention=retention)
    arrive(manager, "a", 47)
    assert num_cached(manager) == [11, kept]


def test_a_windows_hit_needs_only_its_last_blocks():
    manager = make_hybrid(200, [9])
    manager.free(arrive(manager, "a", 41))
    hit = manager.get_computed_blocks(sequence("b", 45))
    assert hit.num_tokens == 40
    null = manager.block_pool.null_block
    (table,) = hit.tables
    assert table[:8] == [null] * 8
    assert null not in table[8:]


def test_groups_do_not_find_each_others_blocks():
    manager = make_hybrid(200, [None, 64, 64], retention=None)
    manager.free(arrive(manager, "a", 21))
    hit = manager.get_computed_blocks(sequence("b", 21))
    blocks = [[block.block_id for block in table] for table in hit.tables]
    assert len({block for table in blocks for block in table}) == 3 * 5


def test_a_hit_ends_where_blocks_of_all_sizes_end():
    manager = make_hybrid(200, [(None, 8), (13, 12)], 24, retention=None)
    assert manager.prefix_cache.block_size == 4
    manager.free(arrive(manager, "a", 60))
    hit = manager.get_computed_blocks(sequence("b", 60))
    assert hit.num_tokens == 48
    assert [len(table) for table in hit.tables] == [6, 4]


# -- the pool ------------------------------------------------------------------------------------


def test_freeing_goes_group_by_group():
    trace = Trace(60, 4, 64)
    manager = make_hybrid(60, [None, 9], caching=False, trace=trace)
    seq = admit(manager, "a", 15)
    compute(manager, seq)
    seq.token_ids.append(1)
    compute(manager, seq, 1)
    manager.free(seq)
    assert [(r.group, r.block_ids) for r in trace.of(BlocksSkipped)] == [(1, (5,))]
    freed = [(r.group, r.block_ids) for r in trace.of(BlocksFreed)]
    assert freed == [(0, (1, 2, 3, 4)), (1, (6, 7, 8))]
    assert [b.block_id for b in manager.block_pool.free_block_queue][:8] == [8, 7, 6, 4, 3, 2, 1, 5]


def test_admission_counts_no_more_than_a_window_ever_holds():
    """A prompt of 60 tokens takes 15 blocks in full, and 5 in a window of 9 with a budget of 8."""
    manager = make_hybrid(21, [None, 9], budget=8, caching=False)
    seq = sequence("a", 60)
    hit = manager.get_computed_blocks(seq)
    assert (
        manager.get_num_blocks_to_allocate(seq, hit) == 15 + 5 == manager.max_num_blocks(0, 60, 1)
    )
    assert manager.can_fit_full_sequence(seq, hit, num_new_tokens=8)
    assert not manager.can_fit_full_sequence(seq, hit, num_new_tokens=8, num_reserved_blocks=1)
    manager.allocate_new_computed_blocks(seq, hit)
    while seq.num_computed_tokens < 60:
        assert compute(manager, seq, min(8, 60 - seq.num_computed_tokens)) is not None
        manager.check_integrity()


def test_a_fork_shares_the_blocks_of_all_groups_and_copies_each_last_one():
    manager = make_hybrid(60, [None, 5])
    parent = arrive(manager, "a", 10)
    child = parent.fork(1)
    parent.request.n = 2
    used = manager.block_pool.num_free_blocks
    manager.fork(parent, child)
    assert manager.block_pool.num_free_blocks == used
    copies = []
    child.token_ids.append(1)
    assert manager.allocate_slots(child, 1, copies) is not None
    assert [copy.group for copy in copies] == [0, 1]
    assert held(manager, child)[1] == 2, "its window moves on, the parent's has not yet"
    assert held(manager, parent) == [3, 3]
    manager.check_integrity()


def test_what_comes_back_from_the_host_has_null_blocks_again():
    manager = make_hybrid(60, [None, 9], host=60)
    seq = arrive(manager, "a", 30)
    swapper = make_swapper(manager)
    assert isinstance(swapper, HybridSwapper)
    swaps = swapper.swap_out([seq], [])
    assert len(swaps) == 8 + 3, "all of full attention, and what the window reaches"
    manager.free(seq, keep_host_blocks=True)
    assert swapper.can_swap_in([seq])
    swapper.swap_in([seq])
    assert [ids[:5] == [0] * 5 for ids in manager.get_block_ids("a")] == [False, True]
    assert held(manager, seq) == [8, 3]
    manager.check_integrity()


# -- integrity -----------------------------------------------------------------------------------


def null_in_the_middle(manager):
    manager.block_tables["a"].tables[1].blocks[3] = manager.block_pool.null_block


def null_in_full_attention(manager):
    table = manager.block_tables["a"].tables[0]
    table.skip(1, manager.block_pool)


def two_groups_with_one_block(manager):
    first, second = manager.block_tables["a"].tables
    manager.block_pool.free_blocks([second.blocks[-1]])
    second.blocks[-1] = first.blocks[-1]
    manager.block_pool.touch([first.blocks[-1]])


def more_than_a_window_holds(manager):
    manager.managers[1].max_blocks = 1


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (null_in_the_middle, "stands in block tables|null blocks are not just"),
        (null_in_full_attention, "full attention keeps all"),
        (two_groups_with_one_block, "is group 0's, too"),
        (more_than_a_window_holds, "more than 1"),
    ],
)
def test_integrity_is_seen(harm, message):
    manager = make_hybrid(60, [None, 9], caching=False)
    arrive(manager, "a", 20)
    manager.check_integrity()
    harm(manager)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity()


def test_one_full_group_decides_as_the_plain_manager():
    """The same block ids, hits and free queue, whatever comes."""
    plain = KVCacheManager(40, 4, enable_prefix_caching=True)
    groups = make_hybrid(40, [None])
    for index, length in enumerate((20, 9, 30, 20, 14)):
        ids = []
        for manager in (plain, groups):
            seq = arrive(manager, f"s{index}", [index % 2] * length)
            ids.append(manager.ids_by_group(manager.get_block_ids(seq.seq_id)))
            manager.free(seq)
        assert ids[0] == ids[1]
    queues = [[b.block_id for b in m.block_pool.free_block_queue] for m in (plain, groups)]
    assert queues[0] == queues[1]


@pytest.mark.parametrize(
    ("unit", "windows", "message"),
    [
        (3, [None, 9], r"Invalid prefix_match_unit=3; .* Got group block sizes=\[4, 4\]"),
        (2, [9], r"with a single KV cache group, prefix-cache hits land on the block size \(4\)"),
    ],
)
def test_a_match_unit_that_does_not_fit_is_refused(unit, windows, message):
    with pytest.raises(ValueError, match=message):
        resolve_hash_block_size(unit, make_specs(windows))


def test_a_match_unit_makes_shorter_pieces_and_the_same_hits():
    assert resolve_hash_block_size(2, make_specs([None, 9])) == 2
    manager = HybridKVCacheManager(
        60, 4, True, specs=make_specs([None, 9]), max_model_len=64, max_in_flight_tokens=64,
        hash_block_size=2,
    )  # fmt: skip
    manager.free(arrive(manager, "a", 21))
    assert manager.get_computed_blocks(sequence("b", 21)).num_tokens == 20
