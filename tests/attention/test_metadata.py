"""Tests of what attention keeps with a step's metadata: once for all layers of a KV cache group."""

import gc
import weakref

import pytest
from paged_batches import make_batch

from minivllm.attention.backend import _blocks_of, rows_by_length
from minivllm.attention.cascade import find_cascade
from minivllm.attention.metadata import once_per_step
from minivllm.attention.paged_torch import tile_batches
from minivllm.cpu.attention.inputs import plan_attention, plan_ragged

ASKED = {
    "rows_by_length": (rows_by_length, ()),
    "blocks": (_blocks_of, (4, None)),
    "blocks of a window": (_blocks_of, (4, 3)),
    "cascade": (find_cascade, (4,)),
    "tiles": (tile_batches, (4, None)),
    "windowed tiles": (tile_batches, (4, 3)),
    "plan": (plan_attention, (4, 1, True)),
    "ragged plan": (plan_ragged, ()),
}


def groups(number=6):
    """Metadata of the same batch in several groups of blocks."""
    first = make_batch([(1, 9), (5, 9), (3, 3)]).metadata
    rows = first.block_table.tolist()
    slots = first.slot_mapping.tolist()
    return [first, *(first.with_blocks(rows, slots) for _ in range(number - 1))]


@pytest.mark.parametrize("name", ASKED)
def test_layers_of_several_groups_ask_in_turn(name):
    function, args = ASKED[name]
    metadata = groups()
    answers = [function(each, *args) for each in metadata]
    for _ in range(3):  # further layers of each group
        for each, answer in zip(metadata, answers, strict=True):
            assert function(each, *args) is answer


def test_each_metadata_and_each_argument_is_computed_once():
    calls = []

    @once_per_step
    def note(metadata, *args):
        calls.append((metadata, *args))

    metadata = groups(3)
    for _ in range(4):
        for each in metadata:
            note(each, 4)
            note(each, 16)
    assert calls == [(each, size) for each in metadata for size in (4, 16)]


def test_what_was_computed_goes_with_the_metadata():
    (metadata,) = groups(1)
    tile = weakref.ref(tile_batches(metadata, 4, None)[0])
    del metadata
    gc.collect()
    assert tile() is None


def test_groups_share_all_but_blocks_and_slots():
    first, second = groups(2)
    assert second.seq_lens is first.seq_lens
    assert second.query_start_loc is first.query_start_loc
    assert second.block_table is not first.block_table
