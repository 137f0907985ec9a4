"""Prompts in numba: whatever their shapes, the answer is the reference's."""

import pytest
import torch
from helpers import examples
from hypothesis import given
from paged_batches import batches, make_batch

from minivllm.attention import paged_numba, prefill_numba
from minivllm.attention.decode_numba import MOST_ROWS
from minivllm.attention.paged_numba import WORTH_A_UNIT, PagedNumba
from minivllm.attention.prefill_numba import KEYS, LANES
from minivllm.attention.reference import Reference


@pytest.fixture
def no_matrix_unit(monkeypatch):
    """On a processor that has one torch would take the prompts in bfloat16."""
    monkeypatch.setattr(paged_numba, "_has_matrix_unit", lambda dtype: False)


@pytest.mark.usefixtures("no_matrix_unit")
@examples(25)
@given(batch=batches(longest=2 * KEYS + 50, most_tokens=400))
def test_equal_to_the_reference(batch):
    batch.check(PagedNumba())


@pytest.mark.usefixtures("no_matrix_unit")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [4, 20, 33])
def test_heads_of_any_size(dtype, head_dim):
    """Also those that the micro-kernel's rows do not divide."""
    seqs = [(MOST_ROWS + 1, 40), (1, 9), (30, 30)]
    make_batch(seqs, head_dim=head_dim, dtype=dtype).check(PagedNumba())


@pytest.mark.parametrize("window", [None, 1, 7, KEYS, KEYS + 9])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_around_a_block_of_keys(window, extra):
    """Prompts and chunks that end just before, at and after a block of keys and a tile of rows."""
    seqs = [(n, n) for n in (KEYS + extra, 2 * KEYS + extra, LANES + extra)]
    seqs += [(LANES + extra, 2 * KEYS + extra)]
    make_batch(seqs, block_size=16, window=window).check(PagedNumba())


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_every_number_of_threads_gives_the_same(kv_heads):
    """Where KV heads cannot be shared out evenly each thread has a part of each one's rows."""
    batch = make_batch([(270, 270), (40, 300)], block_size=16, kv_heads=kv_heads, group=2)
    before, answers = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3, 4):
            torch.set_num_threads(num_threads)
            answers.append(batch.attend(PagedNumba()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    batch.check(PagedNumba())


def test_large_scores_neither_overflow_nor_vanish():
    """Each row's largest score is hundreds above or below those of the block of keys before."""
    batch = make_batch([(2 * KEYS + 20, 2 * KEYS + 20)], block_size=16)
    for first, factor in ((0, 1), (KEYS, 300), (2 * KEYS, -300)):
        blocks = batch.metadata.block_table[0, first // 16 : first // 16 + KEYS // 16].long()
        batch.key_cache[blocks] *= factor
    expected = batch.attend(Reference(torch.float64))  # scores of a thousand end in ten-thousandths
    torch.testing.assert_close(batch.attend(PagedNumba()), expected, rtol=1e-3, atol=1e-3)


def test_torch_takes_bfloat16_where_there_is_a_unit_for_it(monkeypatch):
    calls = []
    whole = prefill_numba.prefill
    monkeypatch.setattr(paged_numba, "prefill", lambda *args: calls.append(1) or whole(*args))
    for has_unit in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=has_unit: has)
        for dtype, in_loops in ((torch.float32, True), (torch.bfloat16, not has_unit)):
            calls.clear()
            make_batch([(20, WORTH_A_UNIT)], block_size=16, dtype=dtype).check(PagedNumba())
            assert bool(calls) == in_loops
