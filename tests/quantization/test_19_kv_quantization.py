"""The KV cache in 8 bits: rounding, attention, scales, blocks, and engines of all mixtures."""

import shutil
from functools import partial
from itertools import chain, combinations
from random import Random

import pytest
import torch
from adapters import load, tensors_for, write_adapter
from helpers import AT_NIGHT, examples, make_llm
from hypothesis import example, given
from hypothesis import strategies as st
from paged_batches import TOLERANCE, make_batch
from safetensors.torch import load_file, save_file

from minivllm import LLM, BeamSearchParams, EngineArgs, SamplingParams
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.quantized_kv import to_float8
from minivllm.attention.reference import Reference
from minivllm.attention.selector import make_backend
from minivllm.kv.kv_cache_spec import bytes_per_block, get_kv_cache_groups
from minivllm.lab.oracle import DenseAttention
from minivllm.lab.training.evaluate import answers, is_right
from minivllm.lab.training.suites import all_suites
from minivllm.lora.request import LoRARequest
from minivllm.worker.kv_cache import kv_cache_specs

CPU = torch.device("cpu")
FLOAT8 = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
NAMES = (*FLOAT8, "int8_per_token_head")
BACKENDS = ("paged_numba", "paged_torch", "reference")
NEAR = 0.02  # logprobs from the definition's: some codes of int8 may be a step away
EVERY_CODE = torch.arange(256).to(torch.uint8)


def empty(name, num_blocks, block_size, kv_heads, head_dim, scales=(1.0, 1.0)):
    """One layer's cache."""
    dtype = FLOAT8.get(name, torch.int8)
    shape = 1, num_blocks, block_size, kv_heads, head_dim
    return KVCache(*shape, dtype, CPU, scales=[scales]).layer(0)


def rounded(numbers, name, scale=1.0):
    """Numbers as they are read of K or V, ``[..., head_dim]``: the definition, in float64."""
    if name in FLOAT8:
        even_first = torch.cat([EVERY_CODE[::2], EVERY_CODE[1::2]])  # of two as near
        codes = even_first.view(FLOAT8[name]).double()
        codes = codes[codes.isfinite()]
        nearest = (numbers.double().unsqueeze(-1) / scale - codes).abs().argmin(-1)
        return codes[nearest] * scale
    numbers = numbers.float()  # quotients are rounded to it before they become whole
    scales = (numbers.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6)
    return (numbers / scales).round().double() * scales


class Disturbed(RuntimeError):
    """Error of a forward pass that fails here."""


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_written_numbers_are_the_nearest(name):
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(2, 9, 3, 32, generator=generator) * 30).bfloat16()
    key[0], key[1, 0], value[2, 1, 5] = 0, 1e-5, 3e4  # nothing, subnormals, and what is too large
    cache, slots = empty(name, 4, 4, 3, 32, (0.5, 2.0)), torch.tensor([5, 4, 15, 14, 0, 9, 8, 7, 6])
    cache.write(key, value, slots)
    parts = zip((key, value), cache.widen(torch.arange(4), torch.float32), (0.5, 2.0), strict=True)
    for numbers, found, scale in parts:
        want = rounded(numbers, name, scale)
        scale = scale if name in FLOAT8 else 1.0
        found = found.flatten(0, 1)
        torch.testing.assert_close(found[slots].double() * scale, want, rtol=2e-6, atol=1e-9)
        found[slots] = 0
        assert not found.any(), "nothing else was written"


@pytest.mark.parametrize("dtype", FLOAT8.values(), ids=str)
def test_what_is_half_way_goes_to_the_even_code_and_what_is_too_large_is_bounded(dtype):
    codes = EVERY_CODE[: 0x7F if dtype == torch.float8_e4m3fn else 0x7C]
    numbers = codes.view(dtype).float()
    assert torch.equal(to_float8(numbers, dtype).view(torch.uint8), codes)
    between = (numbers[1:] + numbers[:-1]) / 2
    assert not (to_float8(between, dtype).view(torch.uint8) % 2).any()
    beyond = torch.tensor([1e9, -1e9, torch.inf, torch.nan])
    largest = numbers.max()
    want = torch.tensor([largest, -largest, largest, torch.nan])
    torch.testing.assert_close(to_float8(beyond, dtype).float(), want, equal_nan=True)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_that_sees_itself_alone_reads_each_code_exactly(backend, name, rows):
    """All codes but NaN, subnormals too, by the loops of decodes (some rows) and of prompts."""
    codes = EVERY_CODE.view(FLOAT8.get(name, torch.int8))
    codes = torch.where(codes.float().isfinite(), codes.view(torch.uint8), 0).view(codes.dtype)
    batch = make_batch([(rows, rows)] * (16 // rows), 16, 1, 1, 64, window=1)
    cache, slots = empty(name, 20, 16, 1, 64), batch.metadata.slot_mapping
    written = codes.view(torch.uint8).view(4, 1, 64).repeat(4, 1, 1)
    cache.value.view(torch.uint8).flatten(0, 1)[slots] = written
    if cache.value_scales is not None:
        cache.value_scales.fill_(0.25)
        cache.key_scales.fill_(1.0)
    query = torch.randn(16, 1, 64)
    out = make_backend(backend, CPU).attend_quantized(query, cache, batch.metadata, 0.1, 1)
    want = codes.float().view(4, 1, 64).repeat(4, 1, 1) * (0.25 if name not in FLOAT8 else 1)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-30)  # e to the -87 is not quite 0


# -- attention ---------------------------------------------------------------------------------

SHAPES = {
    "decodes": [(1, 70), (1, 1), (1, 33), (1, 16)],
    "drafts": [(6, 20), (1, 9), (8, 8), (3, 33)],
    "prompts": [(40, 40), (20, 130), (1, 9), (9, 17)],
}


def check(backend, name, seqs, **kwargs):
    """A step whose K and V come into the cache by ``write``, against rounded ones in float64."""
    batch = make_batch(seqs, **kwargs)
    scales = (0.02, 0.5) if name in FLOAT8 else (1.0, 1.0)
    num_blocks, block_size, kv_heads, head_dim = batch.key_cache.shape
    cache = empty(name, num_blocks, block_size, kv_heads, head_dim, scales)
    key, value = (x.flatten(0, 1) for x in (batch.key_cache, batch.value_cache))
    used = key[:, 0, 0].isfinite().nonzero()[:, 0]
    cache.write(key[used], value[used], used)
    slots = batch.metadata.slot_mapping
    out = make_backend(backend, CPU).forward(
        batch.query, key[slots], value[slots], cache, batch.metadata, batch.scale,
        batch.sliding_window,
    )  # fmt: skip
    keys, values = (
        rounded(x, name, scale).nan_to_num() for x, scale in
        zip((batch.key_cache, batch.value_cache), scales, strict=True)
    )  # fmt: skip
    want = Reference(torch.float64).attend(
        batch.query, keys, values, batch.metadata, batch.scale, batch.sliding_window
    )
    assert out.dtype == batch.query.dtype
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out, want, rtol=tolerance, atol=tolerance)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_is_that_of_the_rounded_numbers(backend, name, shape, dtype):
    check(backend, name, SHAPES[shape], block_size=16, head_dim=64, dtype=dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS[:2])
@examples(15)
@given(data=st.data())
def test_in_any_shape(backend, name, data):
    draw = data.draw
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    seqs = [(draw(st.integers(1, n)) if draw(st.booleans()) else 1, n) for n in lengths]
    check(
        backend, name, seqs,
        block_size=draw(st.sampled_from([1, 3, 8, 16, 32])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 4)),
        head_dim=draw(st.sampled_from([32, 48, 64, 80, 128])),
        dtype=draw(st.sampled_from(list(TOLERANCE))),
        window=draw(st.sampled_from([None, None, 1, 5, 16])),
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_prefix_that_many_share_is_read_once(backend, name):
    """Blocks that all tables begin with: attention in two parts, merged."""
    batch = make_batch([(1, 200)] * 6, 16, head_dim=64)
    table = batch.metadata.block_table
    table[:, :11] = table[0, :11].clone()
    cache = empty(name, *batch.key_cache.shape)
    key, value = (x.nan_to_num() for x in (batch.key_cache, batch.value_cache))
    cache.write(key.flatten(0, 1), value.flatten(0, 1), torch.arange(key.shape[0] * 16))
    out = make_backend(backend, CPU).attend_quantized(
        batch.query, cache, batch.metadata, batch.scale
    )
    keys, values = rounded(key, name), rounded(value, name)
    want = Reference(torch.float64).attend(batch.query, keys, values, batch.metadata, batch.scale)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_are_copied_with_their_scales(backend, name):
    storage = KVCache(3, 6, 4, 2, 32, FLOAT8.get(name, torch.int8), CPU)
    tensors = [storage.data] if storage.scales is None else [storage.data, storage.scales]
    for tensor in tensors:
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) % 251)
    before = [tensor.clone() for tensor in tensors]
    make_backend(backend, CPU).copy_blocks(storage, [1, 2, 1], [4, 5, 3])
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[:, :, [4, 5, 3]], old[:, :, [1, 2, 1]])
        assert torch.equal(tensor[:, :, :3], old[:, :, :3])


# -- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "times"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_the_same_memory_has_more_blocks(dtype, times):
    """Heads of 64 numbers; a scale of 4 bytes beside each in int8."""
    num_blocks = {}
    for name in ("auto", *NAMES):
        config = EngineArgs(
            dtype=dtype, kv_cache_dtype=name, kv_cache_memory_bytes=2**26
        ).create_engine_config()
        specs = kv_cache_specs(config.model_config, config.cache_config)
        num_blocks[name] = 2**26 / bytes_per_block(get_kv_cache_groups([specs]), specs)
    assert num_blocks["fp8"] == num_blocks["fp8_e5m2"] == times * num_blocks["auto"]
    least = {2: 1.85, 4: 3.7}[times]
    assert num_blocks["int8_per_token_head"] >= least * num_blocks["auto"]


# -- engines -----------------------------------------------------------------------------------


class RoundedAttention(DenseAttention):
    """Dense attention over rounded K and V, by the scales of each layer.

    A number that is half-way between two codes, but for its last bits, may become either. Their
    places are kept, and those in ``other_way`` become the other code.
    """

    def __init__(self, name, scales=None, other_way=()):
        self.name, self.scales, self.other_way = name, scales, other_way
        self.half_way, self.num_rounded = [], 0

    def layer(self, index):
        return partial(self._attend, (1.0, 1.0) if self.scales is None else self.scales[index])

    def _attend(self, scales, query, key, value, scale, sliding_window=None):
        keys = self._rounded(key, scales[0]).to(key.dtype)
        values = self._rounded(value, scales[1]).to(value.dtype)
        return self(query, keys, values, scale, sliding_window)

    def _rounded(self, numbers, scale):
        codes = rounded(numbers, self.name, scale)
        other = 1 + torch.copysign(torch.tensor(1e-4), numbers - codes) * numbers.sign()
        others = rounded(numbers * other, self.name, scale)
        self.num_rounded += 1
        if self.name in FLOAT8:  # the steps of int8 are too small to matter
            for place in (others != codes).nonzero().tolist():
                self.half_way.append((self.num_rounded, *place))
                if self.half_way[-1] in self.other_way:
                    codes[tuple(place)] = others[tuple(place)]
        return codes


@torch.inference_mode()
def logprobs_of(model, token_ids, dense):
    """float32 ``[num_tokens, vocab]``: what may follow each token, from the definition."""
    ids = torch.tensor(token_ids)
    hidden = model(ids, torch.arange(len(token_ids)), dense)
    return model.compute_logits(hidden).log_softmax(-1)


def distance(completion, rows):
    """The largest difference of a logprob from those of a definition."""
    pairs = [
        (entry.logprob, row[token_id])
        for row, entries in zip(rows, completion.logprobs or [], strict=bool(completion.logprobs))
        for token_id, entry in entries.items()
    ]
    if completion.cumulative_logprob is not None:
        said = rows[range(len(rows)), completion.token_ids]
        pairs.append((completion.cumulative_logprob, said.sum()))
    return max(abs(found - float(want)) for found, want in pairs)


def assert_as_defined(model, output, name, scales=None):
    """The logprobs of an output are those of its tokens by the definition.

    A code may be the other one of a number that is half-way between two: in e5m2 they are a fifth
    of it apart, and one of them moves a logprob by a tenth.
    """
    for completion in output.outputs:
        ids = [*output.prompt_token_ids, *completion.token_ids]
        assert len(completion.token_ids) > 0

        def distance_from(other_way, completion=completion, ids=ids):
            dense = RoundedAttention(name, scales, other_way)
            rows = logprobs_of(model, ids, dense)[len(output.prompt_token_ids) - 1 : -1]
            return distance(completion, rows), dense.half_way

        found, half_way = distance_from(())
        for other_way in chain(combinations(half_way, 1), combinations(half_way, 2)):
            if found > NEAR:
                found, _ = distance_from(other_way)
        assert found <= NEAR


def run(llm, requests, rng=None):
    """Outputs by request id, checked after every step; with ``rng`` some requests come later."""
    engine, outputs, requests = llm.llm_engine, {}, list(requests)
    while requests or engine.has_unfinished_requests():
        while requests and (rng is None or rng.random() < 0.5):
            request_id, prompt, params, lora = requests.pop(0)
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params, lora_request=lora)
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except Disturbed:
            outputs = {}
        engine.check_integrity()
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    return outputs


GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=3)
SAMPLES = SamplingParams(n=3, seed=3, max_tokens=7, ignore_eos=True, logprobs=3)
BEAMS = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
OWN_DRAFT = {"method": "draft_model", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def adapted(tiny_qwen2, tmp_path_factory):
    """An adapter's directory, and the model with it merged into its weights."""
    model, directory = load(tiny_qwen2), tmp_path_factory.mktemp("adapter")
    tensors = tensors_for(model)
    write_adapter(directory, tensors)  # of alpha 8 and rank 4
    for name, (_, linear, _, rows) in model.checkpoint_linears().items():
        key = f"base_model.model.{name}.lora_{{}}.weight"
        if key.format("A") in tensors:
            linear.weight.data[rows] += 2 * tensors[key.format("B")] @ tensors[key.format("A")]
    return directory, model


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
@example(seed=311)  # a K of layer 1 is half-way between two codes of e5m2
@examples(25)
def test_any_mixture_gets_what_the_definition_says(tiny_qwen2, adapted, name, seed):
    """Chunks, preemption, siblings, beams, prefix hits, drafts and adapters."""
    rng = Random(seed)
    directory, merged = adapted
    models = {None: load(tiny_qwen2), "a": merged}
    llm = make_llm(
        tiny_qwen2, kv_cache_dtype=name, max_model_len=44, swap_space=0.001, max_num_seqs=8,
        block_size=rng.choice([4, 16]),
        num_gpu_blocks_override=rng.randint(25, 34),  # three samples with drafts take 24
        max_num_batched_tokens=rng.choice([9, 24, 256]),
        preemption_mode=rng.choice([None, "swap", "recompute"]),
        enable_prefix_caching=rng.random() < 0.7,
        enforce_eager=rng.random() < 0.3,
        attention_backend=rng.choice(BACKENDS),
        speculative_config=rng.choice([None, NGRAM, OWN_DRAFT | {"model": str(tiny_qwen2)}]),
        enable_lora=True,
    )  # fmt: skip
    common, requests, loras = [rng.randrange(90) for _ in range(20)], [], {}
    for i in range(rng.randint(2, 6)):
        prompt = [*common[: rng.randint(0, 20)], rng.randrange(90)]
        loras[str(i)] = rng.choice([None, "a"])
        lora = LoRARequest("a", 1, str(directory)) if loras[str(i)] else None
        requests.append((str(i), prompt, rng.choice([GREEDY, GREEDY, SAMPLES, BEAMS]), lora))
    for request_id, output in run(llm, requests, rng).items():
        assert_as_defined(models[loras[request_id]], output, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_greedy_tokens_across_preemptions_are_those_of_an_engine_with_room(tiny_qwen2, name, mode):
    """K and V of the numba backend against the reference's, blocks moved against blocks at rest."""
    requests = [(str(i), [7 * i + j for j in range(9 + i)], GREEDY, None) for i in range(5)]
    few = make_llm(
        tiny_qwen2, kv_cache_dtype=name, block_size=4, max_model_len=40, max_num_batched_tokens=7,
        num_gpu_blocks_override=12, preemption_mode=mode, swap_space=0.001,
    )  # fmt: skip
    enough = make_llm(tiny_qwen2, kv_cache_dtype=name, attention_backend="reference")
    found, wanted = run(few, requests), run(enough, requests)
    assert few.llm_engine.scheduler.num_preemptions > 0
    for request_id, output in wanted.items():
        assert found[request_id].outputs[0].token_ids == output.outputs[0].token_ids


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("name", NAMES)
def test_a_failed_step_leaves_nothing_behind(tiny_qwen2, monkeypatch, name, call):
    llm = make_llm(
        tiny_qwen2, kv_cache_dtype=name, block_size=4, max_model_len=40, max_num_batched_tokens=4
    )
    runner, calls = llm.llm_engine.model_runner, []
    forward = runner._forward

    def fail_once(*args):
        calls.append(args)
        if len(calls) == call:
            raise Disturbed
        return forward(*args)

    monkeypatch.setattr(runner, "_forward", fail_once)
    outputs = run(llm, [("a", [3, 1, 4, 1, 5, 9, 2, 6, 5], SAMPLES, None)])
    assert len(calls) > call
    assert_as_defined(load(tiny_qwen2), outputs["a"], name)


# -- scales of a checkpoint --------------------------------------------------------------------


def with_scales(directory, to, **scales):
    """A copy of a checkpoint with these tensors of its layers."""
    shutil.copytree(directory, to)
    tensors = load_file(to / "model.safetensors")
    for name, value in scales.items():
        tensors[f"model.layers.{name}"] = torch.tensor(value)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


SCALES = {
    "0.self_attn.k_scale": 0.03, "0.self_attn.v_scale": [0.5], "1.self_attn.attn.k_scale": 3.0,
    "1.self_attn.attn.v_scale": 1 / 3,
}  # fmt: skip
OLDER = {"0.self_attn.k_proj.k_scale": 0.25, "0.self_attn.v_proj.v_scale": 0.1,
         "1.self_attn.kv_scale": 0.02}  # fmt: skip
ONLY_KEYS = {"0.self_attn.attn.k_scale": 0.25, "1.self_attn.kv_scale": 0.02,
             "1.self_attn.v_scale": 0.4}  # fmt: skip
OUTPUTS = {"0.self_attn.k_proj.output_scale": [0.25], "0.self_attn.v_proj.output_scale": [0.1],
           "1.self_attn.k_proj.output_scale": [0.02]}  # fmt: skip
UNUSED = {"0.self_attn.q_scale": 7.0, "0.self_attn.attn.q_scale": 7.0,
          "1.self_attn.prob_scale": 9.0, "1.self_attn.k_scale": 0.02}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize(
    ("stored", "scales"),
    [
        (SCALES, [(0.03, 0.5), (3.0, 1 / 3)]),
        (OLDER, [(0.25, 0.1), (0.02, 0.02)]),
        (ONLY_KEYS, [(0.25, 0.25), (0.02, 0.4)]),
        (OUTPUTS, [(0.25, 0.1), (0.02, 0.02)]),
        (UNUSED, [(1.0, 1.0), (0.02, 0.02)]),
        ({}, None),
    ],
)
def test_a_checkpoints_scales_are_used(tiny_qwen2, tmp_path, caplog, name, backend, stored, scales):
    directory = with_scales(tiny_qwen2, tmp_path / "m", **stored)
    llm = make_llm(directory, kv_cache_dtype=name, attention_backend=backend)
    requests = [(str(i), list(range(3 + 5 * i)), GREEDY, None) for i in range(3)]
    for output in run(llm, requests).values():
        assert_as_defined(load(tiny_qwen2), output, name, scales)
    warning = f"Using KV cache scaling factor 1.0 for {name}."
    assert (warning in caplog.text) == (scales is None)


def test_scales_are_for_float8_only(tiny_qwen2, tmp_path):
    directory = with_scales(tiny_qwen2, tmp_path / "m", **SCALES)
    for name in ("auto", "int8_per_token_head"):
        found, plain = (
            run(make_llm(path, kv_cache_dtype=name), [("a", [1, 2, 3], GREEDY, None)])["a"]
            for path in (directory, tiny_qwen2)
        )
        assert found.outputs[0].token_ids == plain.outputs[0].token_ids
        assert found.outputs[0].logprobs == plain.outputs[0].logprobs


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0.0, "must be one positive number, got 0.0."),
        (-1.0, "must be one positive number, got -1.0."),
        (float("nan"), "must be one positive number, got nan."),
        (float("inf"), "must be one positive number, got inf."),
        ([1.0, 2.0], "has shape (2,), but is one number."),
    ],
)
def test_a_scale_that_cannot_be_is_refused(tiny_qwen2, tmp_path, value, why):
    directory = with_scales(tiny_qwen2, tmp_path / "m", **{"1.self_attn.v_scale": value})
    with pytest.raises(ValueError) as error:
        make_llm(directory, kv_cache_dtype="fp8")
    assert f"the checkpoint's 'model.layers.1.self_attn.v_scale' {why}" in str(error.value)
    assert str(directory) in str(error.value)


def test_a_scale_of_values_alone_is_refused_where_it_would_scale(tiny_qwen2, tmp_path):
    directory = with_scales(tiny_qwen2, tmp_path / "m", **{"1.self_attn.v_scale": 0.5})
    make_llm(directory)
    with pytest.raises(ValueError, match=r"layer 1 .* has the v_scale 0\.5, but no k_scale"):
        make_llm(directory, kv_cache_dtype="fp8")


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be one of auto, fp8, .* got 'fp4'"):
        EngineArgs(kv_cache_dtype="fp4")


# -- what it knows -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases():
    """A part of the suites; all of them by ``minivllm.lab.training.evaluate``."""
    few = 4 if AT_NIGHT else 1
    return [case for some in all_suites("test", few).values() for case in some[:few]]


def num_right(cases, name) -> int:
    found = answers(LLM(kv_cache_dtype=name), cases)
    return sum(is_right(case, answer) for case, answer in zip(cases, found, strict=True))


@pytest.fixture(scope="module")
def num_right_in_floats(cases):
    return num_right(cases, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8", "int8_per_token_head"])  # e5m2 loses more: 405 of 429
def test_the_embedded_model_knows_as_much(cases, num_right_in_floats, name):
    assert num_right(cases, name) >= num_right_in_floats - 1
