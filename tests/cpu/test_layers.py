"""CPULayers: the layers as loops over arrays say bit for bit what the modules say."""

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_models import CONFIGS, make_model
from torch import nn

from minivllm import LLM, SamplingParams
from minivllm.attention import cascade
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.step import StepAttention
from minivllm.cpu import apply as cpu
from minivllm.cpu import linear
from minivllm.cpu.attention.paged_numba import PagedNumba
from minivllm.cpu.gemm import microkernel
from minivllm.cpu.layers import CPULayers, ModuleLayer
from minivllm.kv.block_table import slots_of
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.ranks import run_ranks
from minivllm.models.linear import LinearMethod
from minivllm.models.loader import load_config, load_model

CPU = torch.device("cpu")
KNOWN = [name for name in CONFIGS if not name.startswith(("gemma3", "opt", "gpt2"))]
PAIRS = "pairs of bfloat16"
DTYPES = [torch.float32, torch.bfloat16, PAIRS]
BLOCK_SIZE, WIDE_BLOCK = 4, 16  # the second is one that decodes' own loop knows


@pytest.fixture
def load(tmp_path):
    def load(name, dtype=torch.float32, change=None):
        family, changes, _ = CONFIGS[name]
        make_model(family, **changes).save_pretrained(tmp_path)
        config = load_config(tmp_path)
        model = load_model(tmp_path, config, dtype, CPU)
        if change is not None:
            change(model)
        cpu.apply(model, PagedNumba())
        return model

    return load


@pytest.fixture
def dtype(request, monkeypatch):
    """Dtype of a model; bfloat16 with and without the instructions for pairs."""
    if request.param is PAIRS:
        if not microkernel.HAS_BFLOAT16:
            pytest.skip("this processor has no instructions for bfloat16")
        monkeypatch.setattr(linear, "choose_method", lambda w: linear.BFloat16PanelLinearMethod())
        return torch.bfloat16
    monkeypatch.setattr(microkernel, "HAS_BFLOAT16", False)
    return request.param


def are_compiled(model):
    return model.model.compiled_layers is not None


def batch(block_size):
    """Two decodes and a chunk behind one prefix, a prompt, and a draft to verify."""
    common = [*range(1, 16 // block_size + 1)]
    tables, next_id = [], len(common) + 1
    query_lens, seq_lens = [1, 1, 5, 20, 3], [18, 20, 25, 20, 30]
    for seq_len, shares in zip(seq_lens, (True, True, True, False, False), strict=True):
        table = list(common) if shares else []
        while len(table) * block_size < seq_len:
            table.append(next_id)
            next_id += 1
        tables.append(table)
    positions, slots = [], []
    for query_len, seq_len, table in zip(query_lens, seq_lens, tables, strict=True):
        positions += range(seq_len - query_len, seq_len)
        slots += slots_of(table, seq_len - query_len, seq_len, block_size)
    metadata = AttentionMetadata.build(query_lens, seq_lens, tables, slots, CPU)
    return torch.tensor(positions), metadata, next_id


@torch.inference_mode()
def check_bit_for_bit(model, block_size, dtype):
    """Hidden states and the written cache are the same by compiled layers and by modules."""
    config, (positions, metadata, num_blocks) = model.config, batch(block_size)
    assert are_compiled(model)
    ids = torch.tensor(random.Random(1).choices(range(96), k=len(positions)))

    def hidden():
        sizes = num_blocks, block_size, config.num_kv_heads, config.head_dim
        cache = KVCache(config.num_layers, *sizes, dtype, CPU)
        cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(2)))
        return model(
            ids, positions, StepAttention(PagedNumba(), cache, [metadata] * config.num_layers)
        ), cache.data

    in_arrays, written = hidden()
    with cpu.layers_as_modules(model):
        in_modules, also_written = hidden()
    assert torch.equal(in_arrays, in_modules)
    assert torch.equal(written, also_written)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str, indirect=True)
@pytest.mark.parametrize("block_size", [BLOCK_SIZE, WIDE_BLOCK])
@pytest.mark.parametrize("name", KNOWN)
def test_bit_for_bit(name, block_size, dtype, load, monkeypatch):
    monkeypatch.setattr(cascade, "WORTH_SHARING", 1)
    check_bit_for_bit(load(name, dtype), block_size, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str, indirect=True)
def test_layers_with_two_rotary_bases_run_as_modules(dtype, load):
    """Gemma 3's are not known: each runs whole, with its own table of angles."""
    model = load("gemma3", dtype)
    assert not are_compiled(model)
    model.model.compiled_layers = CPULayers(model.model, dtype)
    assert all(isinstance(layer, ModuleLayer) for layer in model.model.compiled_layers.layers)
    check_bit_for_bit(model, BLOCK_SIZE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str, indirect=True)
@pytest.mark.parametrize("name", ["llama-biases", "qwen3-biases-tied"])
def test_the_sum_of_several_ranks(name, dtype, tmp_path):
    """Products are called without their modules, which are where other ranks' are added."""
    family, changes, _ = CONFIGS[name]
    make_model(family, **changes).save_pretrained(tmp_path)
    config = load_config(tmp_path)

    def check(group):
        model = load_model(tmp_path, config, dtype, CPU, group=group)
        cpu.apply(model, PagedNumba())
        check_bit_for_bit(model, BLOCK_SIZE, dtype)
        return [operation.op for operation in group.operations].count("all_reduce")

    in_arrays_and_in_modules = 2 * (2 * config.num_layers + 1)
    assert run_ranks(2, check) == [in_arrays_and_in_modules] * 2


class WithAdapter(nn.Module):
    """A linear layer in a wrapper that adds a product of its own, as LoRA's does."""

    def __init__(self, base):
        super().__init__()
        self.base, generator = base, torch.Generator().manual_seed(4)
        delta = 0.1 * torch.randn(base.output_size, base.input_size, generator=generator)
        self.delta = nn.Parameter(delta.to(base.weight.dtype), requires_grad=False)

    def forward(self, x):
        return self.base(x) + x @ self.delta.T


class Rounded(LinearMethod):
    """A linear method that a loader gives a layer: weights of 8 bits."""

    def create_weights(self, layer):
        self.step = layer.weight.abs().max() / 127
        rounded = (layer.weight / self.step).round().to(torch.int8)
        layer.weight = nn.Parameter(rounded, requires_grad=False)

    def apply(self, layer, x):
        return F.linear(x, layer.weight.to(x.dtype) * self.step, layer.bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str, indirect=True)
@pytest.mark.parametrize("part", ["self_attn.qkv_proj", "mlp", "mlp.down_proj"])
def test_a_layer_that_something_has_changed_runs_as_its_module(part, dtype, load, capsys):
    """The layers around it are compiled as always."""

    def change(model):
        layer = model.model.layers[1]
        if part == "self_attn.qkv_proj":
            forward = layer.self_attn.qkv_proj.forward
            layer.self_attn.qkv_proj.forward = lambda x: tuple(2 * y for y in forward(x))
        elif part == "mlp":
            layer.mlp = nn.Sequential(layer.mlp, nn.Tanh())
        else:
            layer.mlp.down_proj = WithAdapter(layer.mlp.down_proj)

    model = load("qwen3", dtype, change)
    assert "Using compiled layers, 2 of 3: the rest runs as modules.\n" in said(capsys)
    kinds = [type(layer).__name__ for layer in model.model.compiled_layers.layers]
    assert kinds == ["CPULayer", "ModuleLayer", "CPULayer"]
    check_bit_for_bit(model, WIDE_BLOCK, dtype)


def said(capsys):
    return capsys.readouterr().out


def test_a_linear_method_that_was_given_stays(load):
    """And the layer is compiled around it."""

    def change(model):
        for layer in model.model.layers:
            layer.mlp.gate_up_proj.quant_method = Rounded()
            layer.mlp.gate_up_proj.quant_method.create_weights(layer.mlp.gate_up_proj)

    model = load("llama", torch.float32, change)
    methods = {type(layer.mlp.gate_up_proj.quant_method) for layer in model.model.layers}
    assert methods == {Rounded}
    assert {type(layer).__name__ for layer in model.model.compiled_layers.layers} == {"CPULayer"}
    check_bit_for_bit(model, WIDE_BLOCK, torch.float32)


@pytest.mark.parametrize(
    ("name", "dtype"), [("gpt2", torch.float32), ("opt", torch.float32), ("qwen2", torch.float16)]
)
def test_other_models_are_left_to_their_modules(name, dtype, load):
    assert not are_compiled(load(name, dtype))


def test_a_backend_of_ones_own_is_asked(load):
    """It may differ from the loops in anything."""

    class Silent(PagedNumba):
        def attend(self, query, *args):
            return torch.zeros_like(query)

    model, (positions, metadata, num_blocks) = load("llama"), batch(BLOCK_SIZE)
    cache = KVCache(3, num_blocks, BLOCK_SIZE, 4, 8, torch.float32, CPU)
    ids = torch.zeros(len(positions), dtype=torch.int64)
    with torch.inference_mode():
        silent = model(ids, positions, StepAttention(Silent(), cache, [metadata] * 3))
        assert not torch.equal(
            silent, model(ids, positions, StepAttention(PagedNumba(), cache, [metadata] * 3))
        )


@pytest.mark.parametrize("through_torch", [False, True], ids=["panels", "torch"])
def test_the_engine_with_and_without(through_torch, monkeypatch):
    """Shared prefixes, chunks and preemptions; products of torch among the loops."""
    if through_torch:
        monkeypatch.setattr(linear, "choose_method", lambda weight: linear.TransposedLinearMethod())
    monkeypatch.setattr(cascade, "WORTH_SHARING", 1)
    rng = random.Random(5)
    common = rng.choices(range(96), k=40)
    prompts = [
        {"prompt_token_ids": common[:n] + rng.choices(range(96), k=5)} for n in (20, 40, 0, 40, 33)
    ]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    def run():
        llm = LLM(
            dtype="float32", block_size=16, max_model_len=80, max_num_batched_tokens=24,
            num_gpu_blocks_override=10, attention_backend="paged_numba",
        )  # fmt: skip
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert llm.llm_engine.scheduler.num_preemptions > 0
        llm.llm_engine.engine_core.check_integrity()
        model = llm.llm_engine.model_runner.model
        for prompt, output in zip(prompts, outputs, strict=True):
            known = list(prompt["prompt_token_ids"])
            for token_id in output.outputs[0].token_ids:
                logits = next_token_logits(model, known)  # by the modules
                assert logits[token_id] >= logits.max() - 1e-4
                known.append(token_id)
        return are_compiled(model), [output.outputs[0].token_ids for output in outputs]

    compiled, answers = run()
    assert compiled
    monkeypatch.setattr("minivllm.cpu.layers.is_known", lambda layer: False)
    assert run() == (False, answers)


@pytest.mark.parametrize("compiled", [True, False], ids=["loops", "modules"])
def test_each_layer_has_the_table_and_the_blocks_that_are_its_own(load, compiled, monkeypatch):
    """With the last layer's table or blocks exchanged, it is the last layer that differs."""
    model, (positions, metadata, num_blocks) = load("llama"), batch(BLOCK_SIZE)
    config, ids = model.config, torch.arange(len(positions)) % 96
    assert are_compiled(model)
    blocks, offsets = metadata.slot_mapping // BLOCK_SIZE, metadata.slot_mapping % BLOCK_SIZE
    elsewhere = replace(
        metadata,
        block_table=num_blocks - 1 - metadata.block_table,
        slot_mapping=(num_blocks - 1 - blocks) * BLOCK_SIZE + offsets,
    )
    whole, made = type(model.model).cos_sin, []

    def written(of_layers, turn=lambda tables: tables):
        """K and V that a step leaves in the cache."""
        sizes = num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim
        cache = KVCache(config.num_layers, *sizes, torch.float32, CPU)

        def cos_sin(decoder, positions):
            made.append(whole(decoder, positions))
            return turn(made[-1])

        monkeypatch.setattr(type(model.model), "cos_sin", cos_sin)
        with nullcontext() if compiled else cpu.layers_as_modules(model), torch.inference_mode():
            model(ids, positions, StepAttention(PagedNumba(), cache, of_layers))
        return cache.data

    last = config.num_layers - 1
    same = written([metadata] * config.num_layers)
    assert len({id(table) for table in made[0]}) == 1
    assert len(made[0]) == config.num_layers
    turned = written([metadata] * config.num_layers, lambda ts: [*ts[:-1], ts[-1].roll(1, 0)])
    moved = written([metadata] * last + [elsewhere])
    for changed in (turned, moved):
        assert torch.equal(changed[:last], same[:last])
        assert not torch.equal(changed[last], same[last])
    slots = metadata.slot_mapping
    values, elsewhere_in = same[last, 1].flatten(0, 1), moved[last, 1].flatten(0, 1)
    assert torch.equal(values[slots], elsewhere_in[elsewhere.slot_mapping])
