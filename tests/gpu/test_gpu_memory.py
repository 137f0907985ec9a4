"""The profile's numbers against those of torch's allocator, and blocks that go to the host."""

import pytest
import torch

from minivllm import SamplingParams
from minivllm.attention.kv_cache import KVCache

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_the_profile_is_what_the_allocator_counts(card_only, on_device):
    """Weights, K and V, and the peak of the largest step: no step may need more."""
    before = torch.cuda.memory_allocated()
    llm = on_device(
        num_gpu_blocks_override=None, gpu_memory_utilization=0.3, max_num_batched_tokens=4096,
        max_num_seqs=64, max_model_len=2048, enforce_eager=True,
    )  # fmt: skip
    profile = llm.profile_memory()
    held = torch.cuda.memory_allocated() - before
    counted = profile.weights + profile.kv_cache
    assert counted <= held <= counted * 1.02 + 2**24
    assert profile.weights + profile.activations + profile.overhead + profile.kv_cache <= (
        0.3 * profile.total
    )
    torch.cuda.reset_peak_memory_stats()
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [7] * 63}] * 64, params, use_tqdm=False)
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before
    assert peak <= held + profile.activations + 2**24


def test_the_weights_are_counted_once(on_device):
    llm = on_device(max_num_batched_tokens=16)
    model = llm.llm_engine.model_runner.model
    stored = {p.data_ptr(): p.nbytes for p in model.parameters()}
    assert llm.profile_memory().weights == sum(stored.values())


def test_blocks_come_back_from_the_host_as_they_were(device):
    shape = 2, 9, 16, 2, 64
    on_device = KVCache(*shape, torch.float16, device)
    host = KVCache(*shape, torch.float16, torch.device("cpu"))
    on_device.data.normal_()
    before = on_device.data.clone()
    host.copy_from(on_device, [3, 5, 8], [1, 2, 7])
    on_device.data[:, :, [3, 5, 8]] = torch.nan  # what was freed is written by others
    on_device.copy_from(host, [7, 1, 2], [8, 3, 5])
    assert torch.equal(on_device.data, before)


def test_an_engine_lets_its_memory_go(card_only, on_device):
    import gc

    def held():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    before = held()
    llm = on_device()
    llm.generate(["Hello"], GREEDY, use_tqdm=False)
    del llm
    assert held() <= before + 2**24  # what libraries keep for themselves
