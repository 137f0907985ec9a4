"""Flat batches over a scattered cache, for the tests of the attention backends (09, 10, 11)."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.reference import Reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class PagedBatch:
    """Everything ``attend`` is called with. Slots that hold no token are NaN."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    metadata: AttentionMetadata
    scale: float
    sliding_window: int | None = None

    def attend(self, backend):
        return backend.attend(
            self.query, self.key_cache, self.value_cache, self.metadata, self.scale,
            self.sliding_window,
        )  # fmt: skip

    def check(self, backend):
        """The backend's answer is the reference's in float64."""
        out = self.attend(backend)
        assert out.shape == self.query.shape
        assert out.dtype == self.query.dtype
        expected = self.attend(Reference(torch.float64))
        tolerance = TOLERANCE[self.query.dtype]
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


def make_batch(
    seqs, block_size=4, kv_heads=2, group=2, head_dim=32, dtype=torch.float32, seed=0, window=None
):
    """A batch of sequences ``(query_len, seq_len)`` whose blocks lie all over the pool."""
    rng = torch.Generator().manual_seed(seed)
    needed = [-(-seq_len // block_size) for _, seq_len in seqs]
    num_blocks = sum(needed) + 3  # the null block, and two that no sequence has
    ids = (torch.randperm(num_blocks - 1, generator=rng) + 1).tolist()
    shape = (2, num_blocks * block_size, kv_heads, head_dim)
    cache = torch.full(shape, torch.nan, dtype=dtype)
    tables, slot_mapping = [], []
    for (query_len, seq_len), n in zip(seqs, needed, strict=True):
        table = [ids.pop() for _ in range(n)]
        slots = [table[p // block_size] * block_size + p % block_size for p in range(seq_len)]
        cache[:, slots] = torch.randn(2, seq_len, *shape[2:], generator=rng).to(dtype)
        tables.append(table)
        slot_mapping += slots[seq_len - query_len :]
    query_lens, seq_lens = zip(*seqs, strict=True)
    metadata = AttentionMetadata.build(
        list(query_lens), list(seq_lens), tables, slot_mapping, torch.device("cpu")
    )
    query = torch.randn(sum(query_lens), kv_heads * group, head_dim, generator=rng).to(dtype)
    key_cache, value_cache = cache.unflatten(1, (num_blocks, block_size))
    return PagedBatch(query, key_cache, value_cache, metadata, head_dim**-0.5, window)


@st.composite
def batches(draw, longest=40, most_tokens=60):
    """Shapes of all kinds: decodes and chunks, odd block sizes, odd heads, windows."""
    only_decodes = draw(st.booleans())
    seqs, tokens = [], 0
    for _ in range(draw(st.integers(1, 4))):
        seq_len = draw(st.integers(1, longest))
        query_len = 1
        if not only_decodes:
            query_len = draw(st.sampled_from([1, seq_len, draw(st.integers(1, seq_len))]))
        if tokens + query_len <= most_tokens or not seqs:
            seqs.append((query_len, seq_len))
            tokens += query_len
    return make_batch(
        seqs,
        block_size=draw(st.sampled_from([1, 2, 3, 5, 8, 16, 16, 32])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 4)),
        head_dim=draw(st.sampled_from([32, 48, 64, 80, 96, 128, 256])),
        dtype=draw(st.sampled_from(list(TOLERANCE))),
        seed=draw(st.integers(0, 100)),
        window=draw(st.sampled_from([None, None, 1, 5, 16])),
    )
