"""Encoders: attention to the whole of a sequence, without a cache."""

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from paged_batches import TOLERANCE

from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.selector import make_backend

CPU = torch.device("cpu")
FOR_A_CPU = ["paged_torch", "paged_numba", "reference"]


def ragged(lengths):
    """Metadata of sequences without blocks."""
    return AttentionMetadata.build(lengths, lengths, [[] for _ in lengths], [], CPU)


# ---- attention -------------------------------------------------------------------------------


@st.composite
def ragged_batches(draw):
    lengths = draw(st.lists(st.integers(1, 130), min_size=1, max_size=5))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from([8, 32, 48, 64]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 100)))
    heads = (kv_heads * group, kv_heads, kv_heads)
    fused = torch.randn(sum(lengths), sum(heads), head_dim, generator=rng).to(dtype)
    return lengths, fused.split_with_sizes(heads, 1)


@pytest.mark.parametrize("name", ["paged_torch", "paged_numba"])
@examples(25)
@given(batch=ragged_batches())
def test_every_row_sees_the_whole_of_its_own_sequence(name, batch):
    """Against dense attention of each sequence, of views of a fused product as models have them."""
    lengths, qkv = batch
    scale = qkv[0].shape[-1] ** -0.5
    found = make_backend(name, CPU).attend_ragged(*qkv, ragged(lengths), scale)
    assert found.dtype == qkv[0].dtype
    torch.testing.assert_close(
        found.double(), dense(lengths, *qkv, scale),
        rtol=TOLERANCE[found.dtype], atol=TOLERANCE[found.dtype],
    )  # fmt: skip


def test_the_reference_sees_the_whole_of_each_sequence():
    qkv = torch.randn(12, 8, 16).split_with_sizes((4, 2, 2), 1)
    found = make_backend("reference", CPU).attend_ragged(*qkv, ragged([7, 1, 4]), 0.25)
    torch.testing.assert_close(found.double(), dense([7, 1, 4], *qkv, 0.25), rtol=1e-5, atol=1e-5)


def dense(lengths, query, key, value, scale):
    """Attention in two products, a sequence after the other, in float64."""
    group = query.shape[1] // key.shape[1]
    outputs = []
    for q, k, v in zip(*(x.double().split(lengths) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        weights = (torch.einsum("ihd,jhd->hij", q, k) * scale).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v))
    return torch.cat(outputs)
