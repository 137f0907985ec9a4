"""Prompts in numba: whatever their shapes, the answer is the reference's."""

import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from paged_batches import batches, make_batch

from minivllm.attention.reference import Reference
from minivllm.cpu.attention.decode import MOST_ROWS
from minivllm.cpu.attention.inputs import LoopInputs, RaggedRows
from minivllm.cpu.attention.paged_numba import PagedNumba
from minivllm.cpu.attention.prefill import KEYS, prefill
from minivllm.cpu.gemm import tile_product
from minivllm.cpu.gemm.amx import HAS_AMX
from minivllm.cpu.gemm.tile_product import LANES

UNITS = ["vectors", "unit"] if HAS_AMX else ["vectors"]
KINDS = ["float32", "float16", *(f"bfloat16 by {unit}" for unit in UNITS)]


@pytest.fixture(params=KINDS, scope="module")
def dtype(request):
    """Dtype of keys and values, with and without AMX for bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_product, "HAS_AMX", request.param.endswith("unit"))
        yield getattr(torch, request.param.split()[0])


@pytest.mark.parametrize("unit", UNITS)
@examples(25)
@given(batch=batches(longest=2 * KEYS + 50, most_tokens=400))
def test_equal_to_the_reference(unit, batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_product, "HAS_AMX", unit == "unit")
        batch.check(PagedNumba())


@pytest.mark.parametrize("head_dim", [4, 20, 33, 64])
def test_heads_of_any_size(dtype, head_dim):
    """Also those that the rows of a tile do not divide."""
    seqs = [(MOST_ROWS + 1, 40), (1, 9), (30, 30)]
    make_batch(seqs, head_dim=head_dim, dtype=dtype).check(PagedNumba())


@pytest.mark.combinations(2)
@pytest.mark.parametrize("window", [None, 1, 7, KEYS, KEYS + 9])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_around_a_block_of_keys(dtype, window, extra):
    """Prompts and chunks that end just before, at and after a block of keys and a tile of rows."""
    seqs = [(n, n) for n in (KEYS + extra, 2 * KEYS + extra, LANES + extra)]
    seqs += [(LANES + extra, 2 * KEYS + extra)]
    make_batch(seqs, block_size=16, window=window, dtype=dtype).check(PagedNumba())


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_every_number_of_threads_gives_the_same(dtype, kv_heads):
    """KV heads that cannot be shared out evenly: each thread has a part of each one's rows."""
    seqs = [(270, 270), (40, 300)]
    batch = make_batch(seqs, block_size=16, kv_heads=kv_heads, group=2, dtype=dtype)
    before, answers = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3, 4):
            torch.set_num_threads(num_threads)
            answers.append(batch.attend(PagedNumba()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    batch.check(PagedNumba())


def test_decodes_on_several_threads_are_the_same(dtype):
    batch = make_batch([(1, 400)] * 8, block_size=16, head_dim=32, kv_heads=4, group=2, dtype=dtype)
    before, answers = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            answers.append(batch.attend(PagedNumba()))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*answers)


def test_large_scores_neither_overflow_nor_vanish():
    """Each row's largest score is hundreds above or below those of the block of keys before."""
    batch = make_batch([(2 * KEYS + 20, 2 * KEYS + 20)], block_size=16)
    for first, factor in ((0, 1), (KEYS, 300), (2 * KEYS, -300)):
        blocks = batch.metadata.block_table[0, first // 16 : first // 16 + KEYS // 16].long()
        batch.key_cache[blocks] *= factor
    expected = batch.attend(Reference(torch.float64))  # scores of a thousand end in ten-thousandths
    torch.testing.assert_close(batch.attend(PagedNumba()), expected, rtol=1e-3, atol=1e-3)


def test_a_query_that_is_no_number_harms_no_other_row(dtype):
    """Rows of many sequences attend to a prefix together. Nor does it look like an answer."""
    rng = torch.Generator().manual_seed(0)
    key_cache, value_cache = torch.randn(2, 3, 16, 2, 20, generator=rng).to(dtype)
    query = torch.randn(3 * LANES, 4, 20, generator=rng).to(dtype)
    one = np.array([0, len(query)]), np.array([[0, 1, 2]], np.int32), np.array([48], np.int32)
    rows = RaggedRows(np.arange(len(query)), *one)

    def attend():
        wide = torch.float32 if dtype == torch.float16 else dtype
        answers = torch.empty(query.shape, dtype=wide), torch.empty(query.shape[:2])
        prefill(LoopInputs.of(*answers, query, key_cache, value_cache, 0.2), rows, is_causal=False)
        return answers

    expected = attend()
    query[5] = torch.nan
    found = attend()
    others = torch.arange(len(query)) != 5
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[others], other[others])
        assert one[5].isnan().all()


def test_a_decode_of_what_is_no_number_is_none(dtype):
    batch = make_batch([(1, 40), (1, 40)], block_size=16, head_dim=32, dtype=dtype)
    expected = batch.attend(PagedNumba())
    batch.query[1] = torch.nan
    found = batch.attend(PagedNumba())
    assert torch.equal(found[0], expected[0])
    assert found[1].isnan().all()
