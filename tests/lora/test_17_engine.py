"""Adapters in an engine: each request gets what a model with its adapter merged in would say."""

import json
import shutil
from random import Random

import pytest
import torch
from adapters import peft_adapter, tensors_for, write_adapter
from helpers import CLEAR, examples, make_llm
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from minivllm import SamplingParams
from minivllm.cpu import linear
from minivllm.lab import oracle
from minivllm.lora.request import LoRARequest
from minivllm.models.linear import UnquantizedLinearMethod
from minivllm.models.loader import load_config, load_model
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=2)
SAMPLES = SamplingParams(n=2, seed=3, max_tokens=8, ignore_eos=True)
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
PARTS = {  # what each adapter changes, and its rank
    "a": (("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 8),
    "b": (("v_proj", "up_proj"), 3),
    "c": (("down_proj",), 16),
}
CHOICES = (None, "a", "b", "c")
WAYS = {
    "compiled": {},
    "modules": {"enforce_eager": True},
    "torch's attention": {"attention_backend": "paged_torch"},
    "one slot": {"max_loras": 1},
    "chunked": {"max_num_batched_tokens": 7},
    "recomputed": {"num_gpu_blocks_override": 12, "preemption_mode": "recompute"},
    "swapped": {"num_gpu_blocks_override": 12, "preemption_mode": "swap"},
    "prefill first": {"scheduling_policy": "prefill_first", "num_gpu_blocks_override": 14},
    "overlapped": {"async_scheduling": True, "max_num_batched_tokens": 9},
    "n-gram drafts": {"speculative_config": DRAFTS},
    "two ranks": {"tensor_parallel_size": 2, "distributed_executor_backend": "together"},
    "modules on four ranks": {
        "tensor_parallel_size": 4, "distributed_executor_backend": "together",
        "enforce_eager": True, "max_num_batched_tokens": 7,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def paths(llama, tmp_path_factory):
    """A directory for each adapter."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, (name, (parts, rank)) in enumerate(PARTS.items()):
        tensors = tensors_for(llama, parts, rank, seed)
        write_adapter(root / name, tensors, r=rank, lora_alpha=2 * rank)
    return {name: root / name for name in PARTS}


@pytest.fixture(scope="module")
def merged(tiny_llama, paths):
    """For each adapter, and for none, our model with it merged into the weights."""
    models = {}
    for name in CHOICES:
        models[name] = load_model(
            tiny_llama, load_config(tiny_llama), torch.float32, torch.device("cpu")
        )
        if name is not None:
            config = json.loads((paths[name] / "adapter_config.json").read_text())
            tensors = load_file(paths[name] / "adapter_model.safetensors")
            for layer, (_, linear, _, rows) in models[name].checkpoint_linears().items():
                key = f"base_model.model.{layer}.lora_A.weight"
                if key in tensors:
                    a, b = tensors[key], tensors[key.replace("lora_A", "lora_B")]
                    linear.weight.data[rows] += config["lora_alpha"] / config["r"] * b @ a
    return models


def adapter(paths, name):
    return None if name is None else LoRARequest(name, CHOICES.index(name), str(paths[name]))


def prompt(number, length):
    return {"prompt_token_ids": [(7 * number + 3 * i) % 80 + 3 for i in range(length)]}


def make_engine(directory, **kwargs):
    usual = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16, "block_size": 4,
             "max_model_len": 40}  # fmt: skip
    return make_llm(directory, **usual | kwargs)


def expected(model, request_prompt, params=GREEDY, index=0):
    ids = request_prompt["prompt_token_ids"]
    request = Request("r", ids, params, frozenset(), seed=params.seed or 0)
    return oracle.run(model, request, 40, index)


def run(llm, prompts, params, loras):
    """Answer prompts, checking after every step. Returns outputs in order."""
    params = params if isinstance(params, list) else [params] * len(prompts)
    engine, outputs = llm.llm_engine, {}
    for i, (each, asked, lora) in enumerate(zip(prompts, params, loras, strict=True)):
        engine.add_request(str(i), each, asked, lora_request=lora)
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[int(output.request_id)] = output
        engine.check_integrity()
    return [outputs[i] for i in range(len(prompts))]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_all_gets_what_each_merged_model_says(tiny_llama, paths, merged, way):
    llm = make_engine(tiny_llama, **WAYS[way])
    names = [CHOICES[i % 4] for i in range(8)]
    prompts = [prompt(i // 4, 5 + i) for i in range(8)]
    loras = [adapter(paths, name) for name in names]
    outputs = run(llm, prompts, GREEDY, loras)
    said = set()
    for name, each, output, lora in zip(names, prompts, outputs, loras, strict=True):
        assert output.outputs[0].token_ids == expected(merged[name], each).token_ids
        assert output.lora_request is lora
        said.add((each["prompt_token_ids"][0], tuple(output.outputs[0].token_ids)))
    assert len(said) == 8, "the adapters change what is said"
    if way in ("recomputed", "swapped", "prefill first"):
        assert llm.llm_engine.scheduler.num_preemptions > 0


def test_logits_are_pefts(tiny_llama, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", "use_rslora": True}
    adapted = peft_adapter(model, tmp_path / "peft", **settings)
    llm = make_engine(tiny_llama)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=20)
    lora = LoRARequest("peft", 1, str(tmp_path / "peft"))
    (output,) = llm.generate(prompt(0, 9), params, use_tqdm=False, lora_request=lora)
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    with torch.no_grad():
        theirs = adapted(torch.tensor([ids])).logits[0].log_softmax(-1)
    for i, found in enumerate(output.outputs[0].logprobs):
        row = theirs[8 + i]
        assert int(row.argmax()) == output.outputs[0].token_ids[i]
        for token_id, entry in found.items():
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-3)


def test_samples_beams_and_a_draft_model(tiny_llama, paths, merged, tmp_path):
    llm = make_engine(
        tiny_llama, max_loras=3,
        speculative_config={"model": str(tiny_llama), "num_speculative_tokens": 2},
    )  # fmt: skip
    plain = {}
    for name in ("a", "c"):
        directory = tmp_path / name
        shutil.copytree(tiny_llama, directory)
        for file in directory.glob("*.safetensors*"):
            file.unlink()
        tensors = merged[name].checkpoint_tensors()
        torch.save({k: v.clone() for k, v in tensors.items()}, directory / "pytorch_model.bin")
        plain[name] = make_llm(directory, block_size=4, max_model_len=40)
    several = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    beams = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    for params in (several, GREEDY, beams):
        for name, other in plain.items():
            lora = adapter(paths, name)
            (ours,) = llm.generate(prompt(1, 7), params, use_tqdm=False, lora_request=lora)
            (theirs,) = other.generate(prompt(1, 7), params, use_tqdm=False)
            assert [c.token_ids for c in ours.outputs] == [c.token_ids for c in theirs.outputs]


def test_only_the_same_adapter_finds_a_prefix(tiny_llama, paths, tmp_path, llama):
    llm = make_engine(tiny_llama)
    a, b = adapter(paths, "a"), adapter(paths, "b")
    shutil.copytree(paths["a"], tmp_path / "copy")
    copy = LoRARequest("a", 9, str(tmp_path / "copy"))
    with_salt = prompt(0, 17) | {"cache_salt": "a"}

    def hits(each, lora):
        (output,) = llm.generate(each, GREEDY, use_tqdm=False, lora_request=lora)
        return output.num_cached_tokens

    assert [hits(prompt(0, 17), lora) for lora in (None, a, b, a, None)] == [0, 0, 0, 16, 16]
    assert hits(prompt(0, 17), LoRARequest("a", 7, str(paths["a"]))) == 16, "the id is not asked"
    assert hits(prompt(0, 17), LoRARequest("other", 8, str(paths["a"]))) == 0
    assert hits(prompt(0, 17), copy) == 0, "another path"
    assert [hits(with_salt, None), hits(with_salt, a), hits(with_salt, a)] == [0, 0, 16]
    write_adapter(tmp_path / "copy", tensors_for(llama, seed=9))
    again = LoRARequest("a", 9, str(tmp_path / "copy"), load_inplace=True)
    assert [hits(prompt(0, 17), again) for _ in range(2)] == [0, 16], "its files have changed"


def test_a_failed_step_is_computed_again_with_the_adapter(tiny_llama, paths, merged, monkeypatch):
    llm = make_engine(tiny_llama)
    engine, runner = llm.llm_engine, llm.llm_engine.model_runner
    forward, calls = runner._forward, []

    def fail(*args):
        calls.append(args)
        if len(calls) == 4:
            raise RuntimeError("disturbed")
        return forward(*args)

    monkeypatch.setattr(runner, "_forward", fail)
    for name in ("a", "b"):
        engine.add_request(name, prompt(2, 6), GREEDY, lora_request=adapter(paths, name))
    outputs = {}
    while engine.has_unfinished_requests():
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except RuntimeError:
            outputs = {}
        engine.check_integrity()
    for name, output in outputs.items():
        wanted = expected(merged[name], prompt(2, 6)).token_ids
        assert output.outputs[0].token_ids == wanted


@pytest.mark.parametrize("in_pairs", [True, False], ids=["pairs", "torch"])
def test_16_bits_are_close(tiny_llama, paths, merged, in_pairs, monkeypatch):
    """By the processor's instructions for pairs of bfloat16, and by a library."""
    if in_pairs and not linear.is_paired(torch.bfloat16):
        pytest.skip("this processor has no instructions for bfloat16")
    kind = linear.BFloat16PanelLinearMethod if in_pairs else UnquantizedLinearMethod
    monkeypatch.setattr(linear, "choose_method", lambda weight: kind())
    llm = make_engine(tiny_llama, dtype="bfloat16")
    layers = llm.llm_engine.model_runner.model.model.layers
    assert {type(layer.mlp.gate_up_proj.quant_method.base) for layer in layers} == {kind}
    (output,) = llm.generate(prompt(0, 8), GREEDY, use_tqdm=False, lora_request=adapter(paths, "a"))
    ids = prompt(0, 8)["prompt_token_ids"]
    theirs = oracle.next_token_logits(merged["a"], ids).log_softmax(-1)
    for token_id, entry in output.outputs[0].logprobs[0].items():
        assert entry.logprob == pytest.approx(float(theirs[token_id]), abs=0.3)


@given(seed=st.integers(0, 10**6))
@examples(12)
def test_any_mixture_gets_what_the_oracle_says(tiny_llama, paths, merged, seed):
    rng = Random(seed)
    llm = make_engine(
        tiny_llama,
        max_loras=rng.randint(1, 3),
        max_cpu_loras=rng.choice([None, 4]),
        num_gpu_blocks_override=rng.randint(15, 30),
        max_num_batched_tokens=rng.randint(5, 40),
        preemption_mode=rng.choice([None, "swap", "recompute"]),
        enable_prefix_caching=rng.random() < 0.7,
        enforce_eager=rng.random() < 0.3,
        speculative_config=rng.choice([None, DRAFTS]),
    )
    names = [rng.choice(CHOICES) for _ in range(7)]
    prompts = [prompt(rng.randint(0, 1), rng.randint(1, 20)) for _ in names]
    params = [rng.choice([GREEDY, SAMPLES]) for _ in names]
    outputs = run(llm, prompts, params, [adapter(paths, name) for name in names])
    for name, each, asked, output in zip(names, prompts, params, outputs, strict=True):
        for index, completion in enumerate(output.outputs):
            wanted = expected(merged[name], each, asked, index)
            clear = next((i for i, m in enumerate(wanted.margins) if m < CLEAR), None)
            assert completion.token_ids[:clear] == wanted.token_ids[:clear]
