"""Uses of memory, and the limits that follow from them."""

import ctypes
import logging
import subprocess
import sys

import pytest
import torch
from cuda_stand_ins import pretend_memory
from safetensors.torch import load_file

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.cpu import linear
from minivllm.cpu.linear import candidates
from minivllm.kv.kv_cache_config import get_kv_cache_config
from minivllm.kv.kv_cache_spec import bytes_per_block
from minivllm.kv.memory_profile import format_bytes, host_memory_gib
from minivllm.worker.profiling import full_step, peak_bytes

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make(directory, **kwargs):
    limits = {"num_gpu_blocks_override": 65, "max_num_batched_tokens": 128} | kwargs
    return LLM(str(directory), skip_tokenizer_init=True, **limits)


# -- the profile ---------------------------------------------------------------------------------


def test_the_parts_of_a_profile_are_what_they_say(tiny_qwen2, caplog, monkeypatch):
    llm = make(tiny_qwen2, max_num_seqs=5)
    monkeypatch.setattr(logging.getLogger("minivllm"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="minivllm"):
        profile = llm.profile_memory()
    stored = load_file(tiny_qwen2 / "model.safetensors")
    tied = stored["model.embed_tokens.weight"].nbytes  # once more, packed for the product
    assert profile.weights == tied + sum(tensor.nbytes for tensor in stored.values())
    assert profile.kv_cache == 65 * 16 * (2 * 2 * 2 * 8 * 4)  # K and V, layers, heads, size, bytes
    assert profile.kv_cache == llm.llm_engine.model_runner.kv_cache.data.nbytes
    # at least the residual stream and a layer's MLP; at most as if nothing were ever let go
    assert 128 * (32 + 2 * 48) * 4 < profile.activations < 128 * 4 * 50 * (32 + 2 * 48)
    assert (profile.overhead, profile.step_tokens, profile.step_seqs) == (0, 128, 5)
    assert profile.total == host_memory_gib() * 2**30
    for name, size, why in profile.parts:
        assert f"{name:12}{format_bytes(size):>12}  {why}" in caplog.text
    assert [name for name, _, _ in profile.parts] == ["weights", "activations", "KV cache"]


@pytest.mark.parametrize("backend", ["paged_numba", "reference"])
def test_a_profile_does_not_depend_on_which_product_is_the_fastest_here(
    tiny_qwen2, monkeypatch, backend
):
    found = set()
    for method in candidates(torch.float32):
        monkeypatch.setattr(linear, "choose_method", lambda weight, m=method: m)
        llm = make(tiny_qwen2, attention_backend=backend)
        compiled = llm.llm_engine.worker.model.model.compiled_layers
        found.add(llm.profile_memory().activations)
        assert llm.llm_engine.worker.model.model.compiled_layers is compiled
    assert len(found) == 1


@pytest.mark.slow
def test_a_larger_step_needs_more_and_is_measured_once(tiny_qwen2):
    small, large = make(tiny_qwen2), make(tiny_qwen2, max_num_batched_tokens=512)
    assert large.profile_memory().activations > 2 * small.profile_memory().activations
    assert small.profile_memory() is small.profile_memory()


def test_profiling_leaves_running_requests_alone(tiny_qwen2):
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8]]
    want = [o.outputs[0].token_ids for o in make(tiny_qwen2).generate(prompts, GREEDY, False)]
    llm = make(tiny_qwen2)
    engine, got = llm.llm_engine, {}
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), {"prompt_token_ids": prompt}, GREEDY)
    while engine.has_unfinished_requests():
        got |= {o.request_id: o.outputs[0].token_ids for o in engine.step()}
        llm.profile_memory()
        engine.check_integrity()
    assert [got["0"], got["1"]] == want


def test_peak_counts_what_lives_at_the_same_time():
    weight = torch.ones(100, 100)

    def run():
        a = weight + 1  # 40,000 bytes
        b = a * 2  # a second time as many
        del a
        c = b.view(-1)[:50]  # a view
        b.add_(1)  # in place
        d = torch.cat([b, b])  # twice as many, beside b: the peak
        del b, d
        return c + 1

    with torch.inference_mode():
        assert peak_bytes(CPU, run) == 120_000
        assert peak_bytes(CPU, lambda: weight[3:5].T) == 0


@pytest.mark.parametrize(
    ("tokens", "seqs", "max_len", "lengths"),
    [
        (20, 4, 100, [17, 1, 1, 1]),
        (20, 4, 8, [7, 7, 5, 1]),
        (100, 3, 8, [7, 7, 7]),
        (2, 4, 8, [1, 1]),
    ],
)
def test_the_largest_step_that_limits_allow(tokens, seqs, max_len, lengths):
    plan = full_step(tokens, seqs, max_len, block_size=4)
    assert list(plan.num_scheduled_tokens.values()) == lengths
    assert [len(new.token_ids) for new in plan.scheduled_new_reqs] == lengths
    assert [len(ids) for (ids,) in plan.new_block_ids.values()] == [-(-n // 4) for n in lengths]
    assert {block for (ids,) in plan.new_block_ids.values() for block in ids} == {0}


# -- a GPU's memory, with its numbers made up ----------------------------------------------------


@pytest.fixture
def measure(tiny_qwen2, monkeypatch):
    """Measurement of a worker on a GPU, done on a CPU: the GPU's answers come from here."""

    monkeypatch.setenv("MINIVLLM_CPU_KVCACHE_SPACE", "0.01")  # of the engine around it

    def measure(free, total, used, **kwargs):
        engine = make(tiny_qwen2, **({"num_gpu_blocks_override": None} | kwargs)).llm_engine
        config, worker = engine.vllm_config, engine.worker
        pretend_memory(monkeypatch, (free, total), (free - used, total))
        worker._look_at_gpu()
        specs = worker.get_kv_cache_spec()
        found = get_kv_cache_config(
            config.cache_config,
            config.scheduler_config,
            [specs],
            [worker._measure_gpu()],
            on_cpu=False,
        )
        worker.num_blocks = found.num_blocks
        worker.bytes_per_block = bytes_per_block(found.groups, specs)
        return worker, worker.num_blocks

    return measure


def test_the_kv_cache_gets_what_is_left(measure):
    gib = 2**30
    worker, num_blocks = measure(free=9 * gib, total=10 * gib, used=gib, gpu_memory_utilization=0.5)
    profile = worker.profile_memory()
    left = 5 * gib - gib - profile.activations
    assert num_blocks == left // (16 * 256)
    assert profile.overhead == gib - profile.weights
    assert profile.kv_cache <= left < profile.kv_cache + 16 * 256
    assert (profile.total, profile.num_blocks) == (10 * gib, num_blocks)
    assert [name for name, _, _ in profile.parts] == [
        "weights", "activations", "overhead", "KV cache",
    ]  # fmt: skip


def test_too_little_memory_on_a_gpu(measure):
    gib = 2**30
    with pytest.raises(ValueError, match=r"8\.00/10\.00 GiB\) .*utilization \(0\.9, 9\.00 GiB"):
        measure(free=8 * gib, total=10 * gib, used=0)
    with pytest.raises(ValueError, match=r"holds 0 tokens .*gpu_memory_utilization\."):
        measure(free=10 * gib, total=10 * gib, used=9 * gib)
    _, num_blocks = measure(free=gib, total=10 * gib, used=0, kv_cache_memory_bytes=2**20)
    assert num_blocks == 2**20 // (16 * 256)


# -- limits --------------------------------------------------------------------------------------

A100, H100, L4 = ("NVIDIA A100-SXM4-80GB", 80 << 30), ("NVIDIA H100", 80 << 30), ("L4", 24 << 30)


@pytest.mark.parametrize(
    ("gpu", "budget", "seqs"),
    [(None, 4096, 256), (A100, 8192, 256), (L4, 8192, 256), (H100, 16384, 1024)],
)
def test_default_limits_are_vllms(gpu, budget, seqs):
    assert EngineArgs().resolve_limits(2048, gpu) == (2048, budget, seqs)
    given = EngineArgs(max_model_len=99, max_num_batched_tokens=7, max_num_seqs=3)
    assert given.resolve_limits(2048, gpu) == (99, 7, 3)
    whole = EngineArgs(enable_chunked_prefill=False).resolve_limits(50_000, gpu)
    assert whole.max_num_batched_tokens == 50_000


def test_a_cache_too_small_says_what_would_fit(tiny_qwen2):
    message = r"raise .* or MINIVLLM_CPU_KVCACHE_SPACE, or lower max_model_len to 65 or less\."
    with pytest.raises(ValueError, match=message):
        make(tiny_qwen2, num_gpu_blocks_override=5)
    llm = make(tiny_qwen2, num_gpu_blocks_override=5, max_model_len=65)
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    output = llm.generate([[1] * 60], params, use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 5


def test_a_cache_larger_than_the_machine_is_refused(tiny_qwen2, monkeypatch):
    too_many = int(host_memory_gib() * 2**30) + 2**30
    message = "the KV cache would take .* GiB, but this machine has .* lower .*CPU_KVCACHE_SPACE"
    with pytest.raises(ValueError, match=message):
        make(tiny_qwen2, num_gpu_blocks_override=None, kv_cache_memory_bytes=too_many)
    monkeypatch.setenv("MINIVLLM_CPU_KVCACHE_SPACE", "100000")
    with pytest.raises(ValueError, match=message):
        make(tiny_qwen2, num_gpu_blocks_override=None)


def test_the_size_of_a_cpus_cache_comes_from_the_environment(tiny_qwen2, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CPU_KVCACHE_SPACE", str(1 / 1024))
    llm = make(tiny_qwen2, num_gpu_blocks_override=None)
    assert llm.llm_engine.worker.num_blocks == 2**20 // (16 * 256)
    monkeypatch.setenv("MINIVLLM_CPU_KVCACHE_SPACE", "much")
    with pytest.raises(ValueError, match="MINIVLLM_CPU_KVCACHE_SPACE must be a number of GiB"):
        make(tiny_qwen2, num_gpu_blocks_override=None)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's")
def test_the_activations_of_a_step_are_made_of_the_last_ones_pages():
    """A process of its own: what is told to the allocator cannot be taken back."""
    script = """
import resource, torch
from minivllm.cpu.allocator import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for mib in (2, 30, 11, 5):
        x = torch.ones(mib * 2**18)
        x = x + torch.ones_like(x)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

new_pages()
usual = new_pages()
keep_freed_memory()
new_pages()
print(usual, new_pages())
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    usual, kept = map(int, answer.stdout.split())
    assert usual > 5_000
    assert kept < 100
