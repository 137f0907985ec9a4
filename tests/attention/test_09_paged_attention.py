"""Backends that run on any CPU: equal to the definition, and to each other inside the engine."""

import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from paged_batches import batches, make_batch

from minivllm import LLM, SamplingParams
from minivllm.attention import selector
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.paged_torch import (
    TILE_ROWS,
    TILES_TOGETHER,
    WORTH_SPLITTING,
    PagedTorch,
    tile_batches,
)
from minivllm.attention.reference import Reference
from minivllm.attention.selector import make_backend
from minivllm.config import ATTENTION_BACKENDS
from minivllm.cpu import compiled
from minivllm.utils import numba_support

CPU = torch.device("cpu")
FOR_A_CPU = ["paged_torch", "paged_numba", "reference"]


@pytest.fixture(scope="module", params=FOR_A_CPU)
def backend(request):
    return make_backend(request.param, CPU)


# ---- the kernels -----------------------------------------------------------------------------


def test_the_reference_is_dense_attention():
    """The slow loops against two lines of torch: no other test checks these loops."""
    batch = make_batch([(7, 7)], block_size=3, group=1)
    keys, values = (
        cache[batch.metadata.block_table[0].long()].flatten(0, 1)[:7].double()
        for cache in (batch.key_cache, batch.value_cache)
    )
    scores = torch.einsum("ihd,jhd->hij", batch.query.double(), keys) * batch.scale
    scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    expected = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values).float()
    torch.testing.assert_close(batch.attend(Reference(torch.float64)), expected)


@pytest.mark.parametrize("name", FOR_A_CPU)
@examples(15)
@given(batch=batches())
def test_equal_to_the_reference(name, batch):
    batch.check(make_backend(name, CPU))


@pytest.mark.combinations(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_few_rows_of_each_sequence_as_drafts_have_them(backend, window, dtype, block_size):
    """Up to eight rows of a sequence, beside decodes and short prompts; and one row too many."""
    seqs = [(6, 20), (1, 9), (8, 8), (3, 33), (2, 2), (1, 1), (2, 70), (1, 64)]
    for more in ([], [(9, 17)]):
        make_batch([*seqs, *more], block_size, dtype=dtype, window=window).check(backend)


def test_a_batch_is_cut_into_tiles_and_those_of_like_shape_are_put_together():
    long = WORTH_SPLITTING + 5
    seqs = [(long, long + 30), (7, 7), (long, long), (9, 12)]
    seqs += [(1, n) for n in range(1, 4 + TILES_TOGETHER)] + [(3, 9), (3, 8)]
    batch = make_batch(seqs, block_size=16)
    batch.check(PagedTorch())
    tiles = tile_batches(batch.metadata, 16, None)
    rows = torch.cat([b.rows.flatten() for b in tiles if not b.is_context])
    assert sorted(rows.tolist()) == list(range(len(batch.query)))
    triangles = sorted(tuple(b.slots.shape) for b in tiles if b.is_causal)
    assert triangles == [(1, 7), (2, long)]
    (context,) = (b for b in tiles if b.is_context)
    assert context is tiles[-1]  # its rows have attended to their own tokens by then
    assert context.rows.tolist() == [list(range(long))]
    assert context.slots.shape == (1, 30)
    masked = sorted(tuple(b.rows.shape) for b in tiles if b.visible is not None)
    assert masked == [(1, 9), (2, 3), (3, 1), (TILES_TOGETHER, 1)]


def test_with_a_window_no_tile_reads_keys_after_its_last_row():
    long = TILE_ROWS + 5
    batch = make_batch([(long, long + 30)], block_size=16, window=long)
    batch.check(PagedTorch())
    first, second = tile_batches(batch.metadata, 16, long)
    assert first.slots.shape == (1, TILE_ROWS + 30)
    assert second.rows.shape == (1, 5)
    assert not any(b.is_causal or b.is_context for b in (first, second))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_chunks_attend_to_their_context_apart(backend, dtype):
    """Chunks above and below the bound, beside decodes and a prompt, in one batch."""
    n = WORTH_SPLITTING
    seqs = [(n, n + 1), (1, 9), (n + 7, 3 * n), (n - 1, 2 * n), (n, n), (n, 2 * n + 3)]
    make_batch(seqs, dtype=dtype).check(backend)


@pytest.mark.parametrize("window", [8, 9, 10])
def test_a_prompt_needs_a_mask_if_its_window_is_shorter(window):
    batch = make_batch([(9, 9)], window=window)
    batch.check(PagedTorch())
    (tiles,) = tile_batches(batch.metadata, 4, window)
    assert (tiles.visible is None) == (window >= 9)


def test_a_window_of_everything_is_no_window(backend):
    seqs = [(1, 20), (6, 11)]
    with_window = make_batch(seqs, window=20).attend(backend)
    torch.testing.assert_close(with_window, make_batch(seqs).attend(backend))
    alone = make_batch([(1, 20)], window=1, group=1)  # a token that sees itself alone
    last = alone.metadata.slot_mapping
    torch.testing.assert_close(alone.attend(backend), alone.value_cache.flatten(0, 1)[last])


def test_what_one_sequence_writes_another_reads_in_the_same_step(backend):
    """Two prompts of five equal tokens; the second shares the first's block and computes one."""
    batch = make_batch([(5, 5), (1, 5)], block_size=4)
    table = batch.metadata.block_table
    table[1, 0] = table[0, 0]
    rng = torch.Generator().manual_seed(1)
    key, value = torch.randn(2, 6, 2, 32, generator=rng)
    key[5], value[5] = key[4], value[4]
    query = batch.query.index_copy(0, torch.tensor([5]), batch.query[4:5])
    for cache in (batch.key_cache, batch.value_cache):
        cache.fill_(torch.nan)
    cache = (batch.key_cache, batch.value_cache)
    out = backend.forward(query, key, value, cache, batch.metadata, batch.scale)
    torch.testing.assert_close(out[4], out[5])
    slots = batch.metadata.slot_mapping
    assert torch.equal(batch.key_cache.flatten(0, 1)[slots], key)
    assert torch.equal(batch.value_cache.flatten(0, 1)[slots], value)
    assert batch.key_cache.isfinite().sum() == 6 * 2 * 32  # and nothing else was written


def test_the_first_blocks_have_memory_when_they_are_touched():
    storage = KVCache(2, 6, 4, 2, 32, torch.float32, CPU)
    storage.data += 1
    storage.touch(3 * storage.data.nbytes // 6)
    assert not storage.data[:, :, :3].any()
    assert storage.data[:, :, 3:].all()
    storage.touch(10**12)  # more than there is
    assert not storage.data.any()


def test_copying_blocks_reaches_every_layer(backend):
    storage = KVCache(3, 6, 4, 2, 32, torch.float32, CPU)
    storage.data.normal_(generator=torch.Generator().manual_seed(0))
    before = storage.data.clone()
    backend.copy_blocks(storage, [1, 2, 1], [4, 5, 3])
    assert torch.equal(storage.data[:, :, [4, 5, 3]], before[:, :, [1, 2, 1]])
    assert torch.equal(storage.data[:, :, :3], before[:, :, :3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_loops_widen_every_number(dtype):
    """All 16-bit patterns, also denormals, inf and NaN, stand for what they do in torch."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)

    @numba.njit
    def convert(numbers):
        return np.array([compiled.widen(number) for number in numbers])

    converted = torch.from_numpy(convert(compiled.as_numpy(numbers)))
    torch.testing.assert_close(converted, numbers.float(), rtol=0, atol=0, equal_nan=True)


def test_the_loops_exp_is_exact_to_half_a_millionth():
    x = np.linspace(-100, 0, 100_001, dtype=np.float32)

    @numba.njit
    def exps(x):
        return np.array([compiled.exp(number) for number in x])

    expected = np.exp(x.astype(np.float64))
    assert (abs(exps(x) - expected) <= 5e-7 * expected + 2e-38).all()


# ---- in the engine ---------------------------------------------------------------------------


def run_engine(name):
    """Shared prefixes, chunks, forks with copies: everything that moves or shares a block."""
    llm = LLM(
        attention_backend=name, dtype="float32", block_size=4, max_model_len=64,
        num_gpu_blocks_override=40, max_num_batched_tokens=12,
    )  # fmt: skip
    prompts = ["The capital of France is", "The capital of Japan is", "Hello, my name is"]
    params = [
        SamplingParams(temperature=0, max_tokens=4),
        SamplingParams(temperature=0, max_tokens=7, ignore_eos=True),
        SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=4, ignore_eos=True),
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.llm_engine.model_runner.attention.name == name
    return [completion.token_ids for output in outputs for completion in output.outputs]


def test_the_engine_says_the_same_with_every_backend():
    expected = run_engine("reference")
    assert len(expected) == 5
    for name in ("paged_torch", "paged_numba"):
        assert run_engine(name) == expected


# ---- the choice ------------------------------------------------------------------------------


def complaint(name, device=CPU):
    with pytest.raises(ValueError, match=f"attention_backend='{name}'") as caught:
        make_backend(name, device)
    return str(caught.value)


def test_auto_explains_its_choice_in_one_line(capsys):
    assert make_backend("auto", CPU).name == "paged_numba"
    assert capsys.readouterr().out == (
        "INFO Using paged_numba attention: a CPU, and numba is installed.\n"
    )


def test_without_numba_auto_falls_back_to_torch(capsys, monkeypatch):
    monkeypatch.setattr(selector, "find_spec", lambda package: None)
    monkeypatch.setattr(numba_support, "find_spec", lambda package: None)
    assert make_backend("auto", CPU).name == "paged_torch"
    assert "paged_torch attention: a CPU, and numba is not installed." in capsys.readouterr().out
    assert "numba 0.67 or later, but numba is not installed" in complaint("paged_numba")
    assert "triton" in complaint("paged_triton")


def test_a_numba_that_slows_torch_down_is_not_used(capsys, monkeypatch):
    monkeypatch.setattr(numba_support, "version", lambda package: "0.66.0")
    assert make_backend("auto", CPU).name == "paged_torch"
    assert "a CPU, and numba is too old." in capsys.readouterr().out
    assert "needs numba 0.67 or later, but numba is too old" in complaint("paged_numba")


def test_a_backend_that_cannot_run_here_says_what_would():
    assert "use 'paged_triton'" in complaint("paged_numba", torch.device("cuda"))
    with pytest.raises(ValueError, match=r"attention_backend must be one of auto, .* got 'flash'"):
        LLM(attention_backend="flash")


def test_every_name_that_may_be_asked_for_is_there():
    assert set(ATTENTION_BACKENDS) == {"auto", *selector._CLASSES}


@pytest.mark.slow
def test_numba_is_imported_only_when_it_is_used():
    code = (
        "import sys, torch\n"
        "from minivllm.attention.selector import make_backend\n"
        "import minivllm.worker.worker\n"
        "make_backend('paged_torch', torch.device('cpu'))\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
