"""Cascade attention: what is shared is read once, and the answer stays the same."""

import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from paged_batches import make_batch

from minivllm import LLM, SamplingParams
from minivllm.attention import cascade, paged_torch
from minivllm.attention.cascade import find_cascade, flash_attention, merge_attn_states
from minivllm.attention.paged_torch import PagedTorch
from minivllm.course.grading.oracle_check import first_wrong_token
from minivllm.cpu.attention import paged_numba
from minivllm.cpu.attention.paged_numba import PagedNumba
from minivllm.cpu.compiled import row_numbers
from minivllm.cpu.fused import merge_attn_states_loop
from minivllm.kv.manager import KVCacheManager
from minivllm.utils.tensors import as_numpy

BACKENDS = [PagedTorch, PagedNumba]
USED = {  # what puts two answers together
    "paged_torch": (paged_torch, "cascade_attention"),
    "paged_numba": (paged_numba, "merge_attn_states_loop"),
}


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(cascade, "WORTH_SHARING", 1)


def share(batch, members, num_blocks):
    """Let these sequences begin with the first one's blocks."""
    table = batch.metadata.block_table
    table[members, :num_blocks] = table[members[0], :num_blocks].clone()
    return batch


@st.composite
def shared_batches(draw):
    """Two groups that share blocks, in one batch with strangers; decodes alone, or chunks too."""
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    only_decodes = draw(st.booleans())
    seqs, groups = [], []
    for _ in range(draw(st.integers(1, 2))):
        num_blocks = draw(st.integers(1, 4))
        members = range(len(seqs), len(seqs) + draw(st.integers(2, 4)))
        for _ in members:
            query_len = 1 if only_decodes else draw(st.integers(1, 6))
            seqs.append((query_len, num_blocks * block_size + query_len + draw(st.integers(0, 9))))
        groups.append((list(members), num_blocks))
    seqs += [(1 if only_decodes else n, n) for n in draw(st.lists(st.integers(1, 9), max_size=2))]
    batch = make_batch(
        seqs, block_size, draw(st.integers(1, 2)), draw(st.integers(1, 4)),
        draw(st.sampled_from([32, 48, 80])),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
    )  # fmt: skip
    for members, num_blocks in groups:
        share(batch, members, num_blocks)
    return batch, len(groups), block_size


@pytest.mark.parametrize("backend", BACKENDS)
@examples(20)
@given(shared=shared_batches())
def test_equal_to_the_reference(backend, shared):
    batch, num_groups, block_size = shared
    assert len(find_cascade(batch.metadata, block_size).prefixes) == num_groups
    batch.check(backend())


def test_only_what_all_members_have_computed_is_shared():
    """The first sequence is still writing its third block; a decode has its own fourth."""
    batch = share(make_batch([(6, 14), (1, 15), (2, 17)]), [0, 1, 2], 3)
    found = find_cascade(batch.metadata, 4)
    (prefix,) = found.prefixes
    assert len(prefix.block_ids) == 2
    assert prefix.rows == slice(0, 9)
    assert found.rest.seq_lens.tolist() == [6, 7, 9]
    assert found.rest.max_seq_len == 9
    assert found.rest.block_table.shape == (3, 3)


@pytest.mark.parametrize(
    "seqs", [[(1, 9)], [(5, 5), (5, 5)], [(1, 4), (1, 4)]], ids=["alone", "new", "a block in all"]
)
def test_nothing_to_share(seqs):
    batch = share(make_batch(seqs), list(range(len(seqs))), 1)
    assert find_cascade(batch.metadata, 4) is None


def test_little_is_not_worth_it(monkeypatch):
    monkeypatch.setattr(cascade, "WORTH_SHARING", 17)
    assert find_cascade(share(make_batch([(1, 9), (1, 9)]), [0, 1], 2).metadata, 4) is None
    assert find_cascade(share(make_batch([(1, 9), (2, 10)]), [0, 1], 2).metadata, 4) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_a_window_each_reads_for_itself(backend):
    batch = make_batch([(1, 30), (1, 30)], window=5)
    share(batch, [0, 1], 6).check(backend())


def test_the_oracle_holds():
    """Shared prefixes, chunks, samples and preemption at once, nothing too small to share."""
    assert first_wrong_token(KVCacheManager) is None


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["paged_torch", "paged_numba"])
def test_the_engine_shares_and_says_the_same(backend, monkeypatch):
    def run(least):
        monkeypatch.setattr(cascade, "WORTH_SHARING", least)
        llm = LLM(attention_backend=backend, dtype="float32", block_size=4, max_model_len=64)
        prompts = [[*range(20, 45), i] for i in range(5)]
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]

    alone = run(10**9)
    calls = []
    module, name = USED[backend]
    whole = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: calls.append(1) or whole(*args))
    assert run(1) == alone
    assert calls


def merge_in_a_loop(output, lse, rows, other, other_lse):
    theirs = as_numpy(other.contiguous()), other_lse.contiguous().numpy(), np.arange(len(other))
    ours = as_numpy(output), lse.numpy(), row_numbers(rows)
    merge_attn_states_loop(other.numel(), *ours, *theirs)


@pytest.mark.parametrize("merge", [merge_attn_states, merge_in_a_loop])
@pytest.mark.parametrize("rows", [slice(2, 5), torch.tensor([4, 0, 2])], ids=["slice", "index"])
def test_two_parts_of_the_keys_are_put_together(rows, merge):
    """Some rows have seen the first three of eight keys and now see the rest; others are left."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, n, 16, generator=generator) for n in (6, 8, 8))

    def attend(keys):
        output, lse = flash_attention(query, key[:, :, keys], value[:, :, keys], 0.25)
        return output[0].transpose(0, 1), lse[0].T.contiguous()

    whole, first, rest = attend(slice(8)), attend(slice(3)), attend(slice(3, 8))
    output, lse = (part.clone() for part in first)
    merge(output, lse, rows, rest[0][rows], rest[1][rows])
    for merged, wanted, before in zip((output, lse), whole, first, strict=True):
        torch.testing.assert_close(merged[rows], wanted[rows])
        others = [i for i in range(6) if i not in torch.arange(6)[rows].tolist()]
        assert torch.equal(merged[others], before[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_of_very_different_weight_are_put_together(dtype):
    """A part may weigh next to nothing, and either may be the heavier one."""
    generator = torch.Generator().manual_seed(1)
    output, other = torch.randn(2, 7, 2, 16, generator=generator).to(dtype)
    lse = torch.tensor([[0, 0], [-200, 200], [50, -50], [9, 8.5], [1, 100], [-7, -6], [3, 3.0]])
    other_lse = lse.flip(1).contiguous()
    found, wanted = (output.clone(), lse.clone()), (output.clone(), lse.clone())
    merge_in_a_loop(*found, slice(0, 7), other, other_lse)
    merge_attn_states(*wanted, slice(0, 7), other, other_lse)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
