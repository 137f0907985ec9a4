"""Rates of kernels beside those of the card: figures for the report, which fail no test."""

import time

import gpu_report
import pytest
import torch

from minivllm import SamplingParams

pytest.importorskip("triton", reason="Triton is available for Linux only")

from minivllm.attention.kernels import cache
from minivllm.attention.kernels.decode import paged_decode
from minivllm.attention.kernels.varlen import varlen_attention
from minivllm.lab.bench import machine
from minivllm.lab.bench.models import bench_model

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture
def kind(on_card):
    """The 16-bit dtype of this card."""
    has_none = on_card and torch.cuda.get_device_capability() < (8, 0)
    return torch.float16 if has_none else torch.bfloat16


def paged(num_seqs, seq_len, kind, device, heads=(32, 8, 128), block_size=16):
    """K and V of sequences whose blocks lie in random places, and their table."""
    _, num_kv_heads, head_dim = heads
    blocks = -(-seq_len // block_size)
    order = 1 + torch.randperm(num_seqs * blocks, generator=torch.Generator().manual_seed(0))
    table = order.view(num_seqs, blocks).int().to(device)
    shape = 2, num_seqs * blocks + 1, block_size, num_kv_heads, head_dim
    caches = torch.randn(shape, device=device).to(kind)
    return caches, table, torch.full((num_seqs,), seq_len, dtype=torch.int32, device=device)


def copy_rate(device, num_bytes):
    """Bytes per second, read and written, of a copy too large for any cache."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / machine.best_seconds(lambda: target.copy_(source), device)


def test_decode_attention_reads_at_the_rate_of_a_copy(kind, device, on_card):
    num_seqs, seq_len = (64, 4096) if on_card else (1, 32)
    caches, table, lengths = paged(num_seqs, seq_len, kind, device)
    query = torch.randn(num_seqs, 32, 128, device=device).to(kind)
    seconds = machine.best_seconds(
        lambda: paged_decode(query, caches[0], caches[1], table, lengths, 0.1), device
    )
    read = caches[:, 1:].nbytes / seconds
    share = 100 * read / copy_rate(device, 2**31 if on_card else 2**16)
    gpu_report.measured(f"decode attention, {num_seqs} x {seq_len}", read / 1e9, "GB/s")
    gpu_report.measured("  of a copy's rate", share, "%", "at least 80")
    assert share > 0


def test_prefill_attention_against_a_product(kind, device, on_card):
    tokens, size = (8192, 8192) if on_card else (20, 64)
    heads = (32, 8, 128) if on_card else (2, 1, 32)
    caches, table, lengths = paged(1, tokens, kind, device, heads)
    query = torch.randn(tokens, heads[0], heads[2], device=device).to(kind)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    seconds = machine.best_seconds(
        lambda: varlen_attention(query, caches[0], caches[1], table, starts, lengths, tokens, 0.1),
        device,
    )
    rate = 4 * heads[0] * heads[2] * tokens * (tokens + 1) / 2 / seconds
    a = torch.randn(size, size, device=device).to(kind)
    product = 2 * size**3 / machine.best_seconds(lambda: a @ a, device)
    gpu_report.measured(f"prefill attention, {tokens} tokens", rate / 1e12, "TFLOP/s")
    gpu_report.measured("  of a product's rate", 100 * rate / product, "%", "at least 50")
    assert rate > 0


def test_moving_k_and_v(kind, device, on_card):
    number = 4096 if on_card else 4
    caches, _, _ = paged(1, 16 * number, kind, device)
    key = torch.randn(number, 8, 128, device=device).to(kind)
    slots = torch.randperm(16 * number, device=device)[:number]
    seconds = machine.best_seconds(
        lambda: cache.write_slots(key, key, caches[0], caches[1], slots), device
    )
    gpu_report.measured(f"writing {number} slots", 4 * key.nbytes / seconds / 1e9, "GB/s")
    half = number // 2
    pairs = list(range(1, half)), list(range(half + 1, number))
    data = caches[None]
    seconds = machine.best_seconds(lambda: cache.copy_blocks(data, *pairs), device)
    moved = 2 * data[0, :, 0].nbytes * len(pairs[0]) / seconds
    gpu_report.measured(f"copying {len(pairs[0])} blocks", moved / 1e9, "GB/s")
    assert moved > 0


def test_graphs_beside_eager_steps(on_device, on_card, kind):
    """A decode step at batch 1, of Qwen3-0.6B's shape with random weights."""
    name = "qwen3-0.6b" if on_card else "tiny"
    number = 32 if on_card else 1
    seconds = {}
    with bench_model(name, str(kind).removeprefix("torch.")) as (directory, load_format):
        for way, eager in (("graphs", False), ("eager", True)):
            llm = on_device(
                model=str(directory), load_format=load_format, skip_tokenizer_init=True,
                dtype="auto", enforce_eager=eager or not on_card, max_num_seqs=2,
            )  # fmt: skip
            took = []
            for max_tokens in (1, 1 + number):
                params = SamplingParams(
                    temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
                )
                prompt = [{"prompt_token_ids": [1, 2, 3]}]
                llm.generate(prompt, params, use_tqdm=False)
                begin = time.perf_counter()
                llm.generate(prompt, params, use_tqdm=False)
                took.append(time.perf_counter() - begin)
            seconds[way] = max(took[1] - took[0], 1e-9) / number
            del llm
    gpu_report.measured(f"a decode step of {name}, graphs", 1e3 * seconds["graphs"], "ms")
    faster = seconds["eager"] / seconds["graphs"]
    gpu_report.measured("  faster than eager", faster, "times", "at least 2")
    assert faster > 0
