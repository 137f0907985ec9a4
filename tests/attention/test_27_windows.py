"""Tests of sliding windows in every backend: what lies before a window is not looked at.

Behind its window a sequence has no blocks any more: they are free, or another's.
"""

from functools import partial

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from paged_batches import make_batch

from minivllm.attention.backend import _blocks_of
from minivllm.attention.kernels.split_kv import split_decode
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.reference import Reference
from minivllm.attention.selector import make_backend

CPU = torch.device("cpu")
BACKENDS = ["reference", "paged_torch", "paged_numba", "paged_triton"]
QUANTIZED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def forgotten(batch):
    """Table of a batch whose windows have left blocks behind, and the slots before each window.

    A table keeps the ids of blocks that have gone: here those of other sequences' blocks.
    """
    block_size = batch.key_cache.shape[1]
    table = batch.metadata.block_table
    first_rows = batch.metadata.seq_lens - batch.metadata.query_start_loc.diff()
    first_keys = (first_rows - batch.sliding_window + 1).clamp(min=0).tolist()
    slots = []
    for row, first_key in zip(table.tolist(), first_keys, strict=True):
        slots += [row[p // block_size] * block_size + p % block_size for p in range(first_key)]
    foreign = table[:, 0].roll(1)
    for seq, first_key in enumerate(first_keys):
        table[seq, : first_key // block_size] = foreign[seq]
    return slots


@st.composite
def windows(draw, rows=(1, 2, 8, 17, 40), longest=60):
    """Decodes, drafts, chunks and prompts, of which most are longer than the window."""
    rows = draw(st.sampled_from([rows[:1], rows[:3], rows]))  # one loop, or several
    seqs = []
    for _ in range(draw(st.integers(1, 4))):
        seq_len = draw(st.integers(1, longest))
        seqs.append((min(seq_len, draw(st.sampled_from(rows))), seq_len))
    return make_batch(
        seqs,
        block_size=draw(st.sampled_from([1, 4, 5, 16, 32])),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([32, 48])),
        seed=draw(st.integers(0, 100)),
        window=draw(st.integers(1, 24)),
    )


def check(batch, attend):
    """Check that ``attend`` says the same, to the bit, when nothing is left before a window."""
    before = attend()
    expected = batch.attend(Reference(torch.float64))
    torch.testing.assert_close(before, expected, rtol=1e-5, atol=1e-5)
    slots = forgotten(batch)
    for cache in (batch.key_cache, batch.value_cache):
        cache.flatten(0, 1)[slots] = torch.nan
    torch.testing.assert_close(attend(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", BACKENDS)
@examples(15)
@given(batch=windows())
def test_what_lies_before_a_window_does_not_matter(name, batch):
    check(batch, partial(batch.attend, make_backend(name, CPU)))


@examples(5)
@given(batch=windows(rows=(1,)), num_splits=st.integers(2, 5))
def test_nor_does_it_where_a_window_is_split(batch, num_splits):
    check(
        batch,
        lambda: split_decode(
            batch.query, batch.key_cache, batch.value_cache, batch.metadata.block_table,
            batch.metadata.seq_lens, batch.scale, num_splits, batch.sliding_window,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
@examples(5)
@given(batch=windows())
def test_nor_does_it_in_8_bits(name, dtype, batch):
    """NaN is a code of float8; int8 has none, but its scales may be NaN."""
    num_blocks, *sizes = batch.key_cache.shape
    cache = KVCache(1, num_blocks, *sizes, dtype, CPU)
    layer = cache.layer(0)
    keys, values = (c.flatten(0, 1) for c in (batch.key_cache, batch.value_cache))
    used = keys[:, 0, 0].isfinite().nonzero()[:, 0]
    layer.write(keys[used], values[used], used)
    backend = make_backend(name, CPU)

    def attend():
        return backend.attend_quantized(
            batch.query, layer, batch.metadata, batch.scale, batch.sliding_window
        )

    before = attend()
    slots = forgotten(batch)
    cache.data.flatten(2, 3)[:, :, slots] = 255
    if cache.scales is not None:
        cache.scales.flatten(2, 3)[:, :, slots] = torch.nan
    torch.testing.assert_close(attend(), before, rtol=0, atol=0)


def test_blocks_before_a_window_are_not_widened():
    batch = make_batch([(1, 33), (5, 20), (3, 3)], window=6)
    table = batch.metadata.block_table.clone()
    block_ids, narrowed = _blocks_of(batch.metadata, 4, 6)
    held = [*table[0, 6:9].tolist(), *table[1, 2:5].tolist(), table[2, 0].item()]
    assert block_ids.tolist() == sorted([0, *held])
    assert block_ids[narrowed.block_table.long()][0].tolist() == [0] * 6 + held[:3]
