"""Every kernel on the device against its definition in float64, on drawn shapes.

Slots that hold no token are NaN, and so are whole blocks that no sequence has: whoever reads one
will show it. Tolerances are a few roundings of the dtype: of a weight, and of the result.
"""

import random
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton", reason="Triton is available for Linux only")

from minivllm.attention.kernels import cache
from minivllm.attention.kernels.decode import paged_decode
from minivllm.attention.kernels.online_softmax import NO_WINDOW
from minivllm.attention.kernels.split_kv import split_decode
from minivllm.attention.kernels.varlen import varlen_attention
from minivllm.attention.quantized_kv import QuantizedKVCache
from minivllm.lora.kernels import lora_expand, lora_shrink
from minivllm.lora.metadata import LoRAMetadata
from minivllm.quantization.kernels import w4a16
from minivllm.utils.tensors import make_tensor

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SEEDS = range(4)


def close(got, want):
    eps = torch.finfo(got.dtype).eps
    tolerance = 1e-5 if got.dtype == torch.float32 else 2.5 * eps
    torch.testing.assert_close(got.double().cpu(), want.cpu(), rtol=tolerance, atol=tolerance)


@dataclass
class Batch:
    """Sequences whose blocks are scattered over a pool, on a device."""

    query: torch.Tensor
    caches: tuple[torch.Tensor, torch.Tensor]
    table: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor
    seqs: list[tuple[int, int]]
    window: int

    @property
    def scale(self):
        return self.query.shape[-1] ** -0.5

    def expected(self):
        """Attention as it is defined: all scores, in float64. NaN is where no row may look."""
        rows, first = [], 0
        keys, values = (c.cpu().double().flatten(0, 1).nan_to_num() for c in self.caches)
        block_size, num_kv_heads = self.caches[0].shape[1:3]
        for (query_len, seq_len), blocks in zip(self.seqs, self.table.cpu(), strict=True):
            at = torch.arange(seq_len)
            slots = blocks.long()[at // block_size] * block_size + at % block_size
            q = self.query[first : first + query_len].cpu().double()
            q = q.unflatten(1, (num_kv_heads, -1))
            scores = torch.einsum("qkgd,skd->kgqs", q, keys[slots]) * self.scale
            ahead = torch.arange(seq_len - query_len, seq_len)[:, None] - at
            hidden = (ahead < 0) | (ahead >= self.window)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            rows.append(torch.einsum("kgqs,skd->qkgd", weights, values[slots]).flatten(1, 2))
            first += query_len
        return torch.cat(rows)


def draw(seed, dtype, device, on_card, decodes_only):
    """A batch of drawn shape: head sizes, groups, block sizes, windows, ragged lengths."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    longest = 2000 if on_card else 70
    seqs = []
    for _ in range(rng.randint(1, 9 if on_card else 3)):
        seq_len = rng.choice([1, 15, 16, 17, rng.randint(1, longest)])
        query_len = 1 if decodes_only else rng.choice([1, 2, seq_len, rng.randint(1, seq_len)])
        seqs.append((min(query_len, seq_len), seq_len))
    block_size = rng.choice([1, 3, 16, 16, 32])
    num_kv_heads, group = rng.choice([(1, 8), (2, 7), (4, 1), (8, 2), (3, 3), (1, 32)])
    if not on_card:
        num_kv_heads = min(num_kv_heads, 2)
    head_dim = rng.choice([32, 64, 80, 128, 128, 256])
    needed = [-(-seq_len // block_size) for _, seq_len in seqs]
    num_blocks = sum(needed) + 5  # the null block, and some that nobody has
    ids = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    data = torch.full((2, num_blocks * block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    table = torch.zeros(len(seqs), max(needed) + rng.randint(0, 3), dtype=torch.int32)
    window = rng.choice([NO_WINDOW, NO_WINDOW, 1, 5, 100])
    for row, ((query_len, seq_len), number) in enumerate(zip(seqs, needed, strict=True)):
        blocks = torch.tensor([ids.pop() for _ in range(number)])
        table[row, :number] = blocks
        at = torch.arange(seq_len)
        slots = blocks[at // block_size] * block_size + at % block_size
        data[:, slots] = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator).to(
            dtype
        )
        data[:, slots[: max(0, seq_len - query_len - window + 1)]] = torch.nan  # left behind
    num_tokens = sum(query_len for query_len, _ in seqs)
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim, generator=generator).to(dtype)
    ends = torch.tensor([query_len for query_len, _ in seqs]).cumsum(0)
    starts = torch.cat([torch.zeros(1), ends]).int()
    lengths = torch.tensor([seq_len for _, seq_len in seqs], dtype=torch.int32)
    key_cache, value_cache = data.unflatten(1, (num_blocks, block_size)).to(device)
    return Batch(
        query.to(device), (key_cache, value_cache), table.to(device), starts.to(device),
        lengths.to(device), seqs, window,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_paged_decode(seed, dtype, device, on_card):
    batch = draw(seed, dtype, device, on_card, decodes_only=True)
    got = paged_decode(
        batch.query, *batch.caches, batch.table, batch.seq_lens, batch.scale, batch.window
    )
    close(got, batch.expected())


@pytest.mark.parametrize("seed", SEEDS)
def test_varlen(seed, dtype, device, on_card):
    batch = draw(100 + seed, dtype, device, on_card, decodes_only=False)
    most = max(query_len for query_len, _ in batch.seqs)
    got = varlen_attention(
        batch.query, *batch.caches, batch.table, batch.starts, batch.seq_lens, most, batch.scale,
        batch.window,
    )  # fmt: skip
    close(got, batch.expected())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_splits", [2, 5, 64])
def test_split_decode(seed, num_splits, dtype, device, on_card):
    """Ranges of short sequences are empty; the merge leaves them out."""
    batch = draw(200 + seed, dtype, device, on_card, decodes_only=True)
    if not on_card:
        num_splits = min(num_splits, 5)
    got = split_decode(
        batch.query, *batch.caches, batch.table, batch.seq_lens, batch.scale, num_splits,
        batch.window,
    )  # fmt: skip
    close(got, batch.expected())


@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_every_head_size_at_the_edges_of_tiles(head_dim, dtype, device, on_card):
    """A position past a tile's end must be seen by no row before it."""
    for rows, first in ((1, 63), (2, 14), (2, 30), (2, 62), (9, 16)):
        seqs = [(rows, first + rows)]
        generator = torch.Generator().manual_seed(first)
        blocks = -(-seqs[0][1] // 16)
        data = torch.full((2, (blocks + 1) * 16, 1, head_dim), torch.nan, dtype=dtype)
        data[:, 16 : 16 + seqs[0][1]] = torch.randn(
            2, seqs[0][1], 1, head_dim, generator=generator
        ).to(dtype)
        query = torch.randn(rows, 2, head_dim, generator=generator).to(dtype)
        batch = Batch(
            query.to(device),
            tuple(data.unflatten(1, (blocks + 1, 16)).to(device)),
            torch.arange(1, blocks + 1, dtype=torch.int32)[None].to(device),
            torch.tensor([0, rows], dtype=torch.int32).to(device),
            torch.tensor([seqs[0][1]], dtype=torch.int32).to(device),
            seqs,
            NO_WINDOW,
        )
        got = varlen_attention(
            batch.query, *batch.caches, batch.table, batch.starts, batch.seq_lens, rows, batch.scale
        )
        close(got, batch.expected())


# ---- moving K and V --------------------------------------------------------------------------


@pytest.mark.parametrize("heads_and_size", [(1, 80), (2, 64), (8, 128)])
def test_slots_are_written_and_no_others(heads_and_size, dtype, device):
    num_kv_heads, head_dim = heads_and_size
    width = num_kv_heads * head_dim
    fused = torch.randn(7, 3 * width, generator=torch.Generator().manual_seed(0)).to(dtype)
    key, value = (part.unflatten(1, heads_and_size) for part in fused.to(device).chunk(3, 1)[1:])
    caches = torch.full((2, 5, 16, num_kv_heads, head_dim), torch.nan, dtype=dtype, device=device)
    want = caches.clone()
    slots = torch.tensor([79, 0, 16, 33, 5, 64, 63], device=device)
    cache.write_slots(key, value, caches[0], caches[1], slots)
    cache.write_slots_torch(key, value, want[0], want[1], slots)
    assert torch.equal(caches.nan_to_num(7.0), want.nan_to_num(7.0))


def test_blocks_are_copied_and_no_others(dtype, device):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(3, 2, 9, 16, 2, 80, generator=generator).to(dtype).to(device)
    want = data.clone()
    cache.copy_blocks(data, [1, 4, 1], [2, 8, 7])
    cache.copy_blocks_torch(want, [1, 4, 1], [2, 8, 7])
    assert torch.equal(data, want)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_8_bits_are_written_and_read_as_on_a_cpu(kind, device):
    """Codes are the same bits on every device, and so is what is read of them."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, 6, 2, 64, generator=generator) * 3
    read = []
    for place in (torch.device("cpu"), device):
        codes = torch.zeros(2, 4, 4, 2, 64, dtype=torch.uint8, device=place).view(kind)
        scales = torch.zeros(2, 4, 4, 2, device=place) if kind == torch.int8 else [None, None]
        quantized = QuantizedKVCache(codes[0], codes[1], 0.5, 2.0, scales[0], scales[1])
        slots = torch.tensor([3, 4, 5, 6, 9, 15], device=place)
        quantized.write(numbers[0].to(place), numbers[1].to(place), slots)
        block_ids = torch.tensor([3, 1, 0, 2], device=place)
        read.append([wide.cpu() for wide in quantized.widen(block_ids, torch.float32)])
    for on_cpu, on_device in zip(*read, strict=True):
        assert torch.equal(on_cpu, on_device)


# ---- linear layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(64,), (70, 130), (48, 16, 5)])
@pytest.mark.parametrize("other_dtype", [False, True])
def test_adapters_are_added_to_their_rows(widths, other_dtype, dtype, device):
    generator = torch.Generator().manual_seed(sum(widths))
    kind = torch.float32 if other_dtype else dtype
    size, rank, slots = 300, 16, [1, -1, 0, 2, 1]
    query_lens = [17, 3, 1, 20, 2]
    metadata = LoRAMetadata.build(slots, query_lens, device)

    def random_tensor(*shape, kind=dtype, std=0.2):
        return (torch.randn(*shape, generator=generator) * std).to(kind)

    x, y = random_tensor(sum(query_lens), size), random_tensor(sum(query_lens), sum(widths))
    a = random_tensor(3, size, len(widths) * rank, kind=kind)
    b = random_tensor(3, rank, sum(widths), kind=kind)
    want, first = y.double(), 0
    for slot, number in zip(slots, query_lens, strict=True):
        if slot >= 0:
            rows, begin = slice(first, first + number), 0
            shrunk = x[rows].double() @ a[slot].double()
            for part, width in enumerate(widths):
                some = shrunk[:, part * rank : (part + 1) * rank]
                columns = slice(begin, begin + width)
                want[rows, columns] += some @ b[slot, :, columns].double()
                begin += width
        first += number
    got = y.to(device)
    shrunk = lora_shrink(x.to(device), a.to(device), metadata)
    lora_expand(got, shrunk, b.to(device), widths, metadata)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().double(), want, rtol=2 * eps, atol=max(2e-5, 2 * eps))


@pytest.mark.parametrize("num_tokens", [1, 16, 70])
@pytest.mark.parametrize("inputs_and_group", [(96, 32), (96, 48), (256, 128)])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_4_bits(num_tokens, inputs_and_group, zeros, dtype, device):
    """A product is the definition's in float64, but for the float32 sum and the result's bits."""
    inputs, group = inputs_and_group
    width, generator = 72, torch.Generator().manual_seed(inputs + num_tokens)
    q = torch.randint(0, 16, (inputs, width), generator=generator)
    scales = (torch.rand(inputs // group, width, generator=generator) * 0.04 + 0.02).half()
    zero = torch.full(scales.shape, 8)
    if zeros:
        zero = torch.randint(0, 16, scales.shape, generator=generator)
    bias = torch.randn(width, generator=generator).to(dtype)
    x = torch.randn(num_tokens, inputs, generator=generator).to(dtype)
    of_group = torch.arange(inputs) // group
    weight = (q - zero[of_group]).double() * scales[of_group].double()
    octets = q.unflatten(0, (-1, 8)) << (4 * torch.arange(8))[None, :, None]
    words = octets.sum(1)
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    got = w4a16(
        x.to(device), words.to(device), scales.to(device),
        zero.to(torch.int8).to(device) if zeros else None, bias.to(device),
    )  # fmt: skip
    want = x.double() @ weight + bias.double()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().double(), want, rtol=eps, atol=max(3e-5, eps))


# ---- from Python to the device -----------------------------------------------------------------


def test_numbers_come_through_pinned_memory(device):
    """The CPU goes on while they are copied: what it does to its memory next must not matter."""
    for number in range(50):
        values = [[number, -number], [2**31 - 1, number]]
        assert make_tensor(values, "int64", device).tolist() == values
    assert make_tensor([], "int32", device).shape == (0,)
