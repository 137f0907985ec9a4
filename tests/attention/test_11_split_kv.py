"""Split-KV: ranges that cover everything, a merge that can be checked by hand."""

import math

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from paged_batches import TOLERANCE, make_batch

pytest.importorskip("triton", reason="Triton is available for Linux only")

from minivllm.attention import paged_triton
from minivllm.attention.kernels import split_kv
from minivllm.attention.kernels.recorder import record_loads
from minivllm.attention.reference import Reference


def test_the_merge_by_hand():
    """Parts that summed up 3 and 1 weigh three quarters and one; an empty part weighs nothing."""
    parts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    lse = torch.tensor([math.log(3), math.log(1), -math.inf])
    torch.testing.assert_close(split_kv.merge_splits_torch(parts, lse), torch.tensor([0.75, 0.25]))
    output = torch.empty(1, 1, 2)
    kernel = split_kv._merge_splits_kernel
    kernel[(1,)](output, parts, lse, 3, HEAD_DIM=2, HEAD_DIM_PADDED=2, SPLITS=4)
    torch.testing.assert_close(output[0, 0], torch.tensor([0.75, 0.25]))


def test_merging_two_halves_is_the_softmax_of_the_whole():
    scores = torch.tensor([0.5, 80.0, -3.0, 79.0], dtype=torch.float64)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    halves = [(scores[:1], values[:1]), (scores[1:], values[1:])]
    parts = torch.stack([s.softmax(0) @ v for s, v in halves])
    lse = torch.stack([s.logsumexp(0) for s, _ in halves])
    torch.testing.assert_close(split_kv.merge_splits_torch(parts, lse), scores.softmax(0) @ values)


@given(st.integers(1, 50), st.integers(0, 49), st.integers(1, 60))
def test_ranges_cover_every_position_once(seq_len, begin, num_splits):
    begin = min(begin, seq_len - 1)
    ranges = split_kv.split_ranges(begin, seq_len, num_splits)
    assert len(ranges) == num_splits
    assert [p for start, stop in ranges for p in range(start, stop)] == list(range(begin, seq_len))


@pytest.mark.slow
@examples(6)
@given(
    num_splits=st.integers(1, 9),
    dtype=st.sampled_from(list(TOLERANCE)),
    block_size=st.sampled_from([1, 5, 16]),
    window=st.sampled_from([None, 7]),
    seed=st.integers(0, 100),
)
def test_equal_to_both_references(num_splits, dtype, block_size, window, seed):
    """More splits than tokens, too: the sequence of one token has empty ranges."""
    batch = make_batch(
        [(1, 1), (1, 23), (1, 70)], block_size, kv_heads=2, group=3, head_dim=80, dtype=dtype,
        seed=seed, window=window,
    )  # fmt: skip
    args = (
        batch.query, batch.key_cache, batch.value_cache, batch.metadata.block_table,
        batch.metadata.seq_lens, batch.scale, num_splits, window or split_kv.NO_WINDOW,
    )  # fmt: skip
    expected = batch.attend(Reference(torch.float64))
    for split in (split_kv.split_decode, split_kv.split_decode_torch):
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(split(*args), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("num_programs", "max_seq_len", "num_processors", "splits"),
    [
        (512, 4096, 132, 1),  # 64 sequences of 8 KV heads fill a GPU by themselves
        (8, 32768, 132, 60),  # one does not
        (136, 8192, 132, 7),  # 136 are two waves of one program each, the second nearly empty
        (8, 600, 132, 2),  # but short ones are not worth many
        (8, 255, 132, 1),
    ],
)
def test_when_splitting_helps(num_programs, max_seq_len, num_processors, splits):
    assert split_kv.choose_num_splits(num_programs, max_seq_len, num_processors) == splits


def test_the_backend_splits_when_the_gpu_has_room(monkeypatch):
    monkeypatch.setattr(paged_triton, "_num_processors", lambda device: 16)
    batch = make_batch([(1, 520)], block_size=16, kv_heads=1)
    with record_loads(batch.key_cache) as loads:
        batch.check(paged_triton.PagedTriton())
    assert {load.program for load in loads} == {(0, 0, 0), (0, 0, 1)}
    table = batch.metadata.block_table[0].tolist()
    first = {block for load in loads if load.program[2] == 0 for block in load.blocks}
    assert first == set(table[: -(-260 // 16)])
