"""``minivllm quantize``: what it writes is read back as it was rounded, and GPTQ errs less."""

import shutil
from dataclasses import replace

import pytest
import torch
from small_models import make_model
from typer.testing import CliRunner

from minivllm import LLM, SamplingParams, embedded_model_path
from minivllm.cli import app
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.quantize.awq import find_channel_scales
from minivllm.lab.quantize.command import calibration_texts, run_quantize
from minivllm.lab.quantize.gptq import gptq
from minivllm.lab.quantize.model import Sequence, fold_channel_scales, quantize_model
from minivllm.lab.quantize.rounding import round_to_nearest
from minivllm.lab.quantize.smoothquant import smoothing_scales
from minivllm.models.loader import load_config, load_model
from minivllm.quantization import get_quantization_config
from minivllm.quantization.activations import round_activations

SIZES = {"Llama": {"intermediate_size": 64}, "OPT": {"ffn_dim": 64}, "GPT2": {"n_inner": 64}}


def quantize(target, *options):
    done = CliRunner().invoke(app, ["quantize", str(embedded_model_path()), str(target), *options])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("bits", "sym"), [(2, False), (4, True), (8, True), (8, False)])
def test_what_is_rounded_is_near_and_on_its_grid(bits, sym):
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(bits))
    rounded = round_to_nearest(weight, bits, 16, sym)
    assert rounded.scales.shape == (24, 4)
    assert int(rounded.q.max()) <= 2**bits - 1
    step = rounded.scales.float().repeat_interleave(16, 1)
    # half a step, or a whole one where the zero point is rounded and the end is cut off
    assert ((rounded.dequantize() - weight).abs() <= step * 1.01).all()


def test_gptq_and_awq_change_products_less_than_rounding():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(64, 64, generator=generator)
    x = torch.randn(500, 64, generator=generator) @ mix  # inputs that go together
    x[:, :4] *= 20  # and some that are large
    weight = torch.randn(32, 64, generator=generator)

    def error(w):
        return float((x @ (w - weight).T).square().sum())

    nearest = error(round_to_nearest(weight, 3, 64, sym=False).dequantize())
    assert error(gptq(weight, x.T @ x, 3, 64, sym=False).dequantize()) < 0.6 * nearest
    scales = find_channel_scales(weight, x, 3, 64)
    scaled = round_to_nearest(weight * scales, 3, 64, sym=False).dequantize() / scales
    assert error(scaled) < 0.8 * nearest


def test_smoothquant_changes_products_of_int8_less_than_rounding():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 64, generator=generator)
    x[:, :4] *= 50
    weight = torch.randn(32, 64, generator=generator)

    def error(x, w):
        rounded = round_to_nearest(w, 8, 64, sym=True).dequantize()
        return float((round_activations(x, torch.int8) @ rounded.T - x @ w.T).square().sum())

    scales = smoothing_scales(weight, x)
    assert error(x / scales, weight * scales) < 0.2 * error(x, weight)


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "rtn", "--bits", "4", "--group", "32"),
        ("--method", "gptq", "--bits", "8", "--group", "-1", "--num-texts", "2"),
        ("--method", "awq", "--group", "64", "--num-texts", "1"),
        ("--method", "smoothquant", "--bits", "8", "--num-texts", "1"),
    ],
    ids=["rtn", "gptq", "awq", "smoothquant"],
)
def test_a_quantized_directory_is_loaded_by_its_name(tmp_path, options):
    quantize(tmp_path / "m", *options)
    llm = LLM(str(tmp_path / "m"), enforce_eager=True)
    linears = llm.llm_engine.worker.model.checkpoint_linears()
    source = embedded_model_path()
    plain = load_model(source, load_config(source), torch.float32, torch.device("cpu"))
    for name, part in plain.checkpoint_linears().items():
        moved = {"awq", "smoothquant"}.intersection(options)  # scales, between layers
        if name != "lm_head" and not moved:
            found = linears[name].layer.quant_method.dequantize(linears[name].layer)
            weight = part.layer.weight[part.rows]
            relative = (found[part.rows] - weight).norm() / weight.norm()
            assert relative < (0.02 if "gptq" in options else 0.12)
    params = SamplingParams(temperature=0, max_tokens=12)
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(ask, params, use_tqdm=False)
    assert "Paris" in output.outputs[0].text


@pytest.mark.parametrize("family", ["Qwen3", "Gemma3"])
def test_folded_scales_change_nothing(family, tmp_path):
    """Each norm puts out that much less, also one whose weights are stored as differences."""
    make_model(family).save_pretrained(tmp_path)
    model = load_model(tmp_path, load_config(tmp_path), torch.float32, torch.device("cpu"))
    ids = [5, 6, 7, 40]
    before = next_token_logits(model, ids)
    weights = [layer.input_layernorm.weight.clone() for layer in model.model.layers]
    sequence = Sequence(model, ids)
    for layer, weight in zip(model.model.layers, weights, strict=True):
        with torch.no_grad():
            fold_channel_scales(layer, [sequence], lambda w, x: 1 + x.abs().mean(0))
        sequence.hidden, sequence.residual = sequence.through(layer)
        assert not torch.equal(layer.input_layernorm.weight, weight)
    torch.testing.assert_close(next_token_logits(model, ids), before, atol=1e-4, rtol=1e-4)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("method", ["rtn", "gptq", "awq", "smoothquant"])
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3", "OPT", "GPT2"])
def test_every_family_is_read_back_as_it_was_rounded_by_every_method(
    tmp_path, tiny_chat, family, method
):
    """The layers, bit for bit but for the dtype of scales, and what lies between them."""
    source, target = shutil.copytree(tiny_chat, tmp_path / "source"), tmp_path / "target"
    make_model(family, vocab_size=258, **SIZES.get(family, SIZES["Llama"])).save_pretrained(source)
    options = method, 8 if method == "smoothquant" else 4, 32, False
    run_quantize(source, target, *options, num_texts=1)
    config = load_config(target)
    config = replace(config, quant_config=get_quantization_config(target))
    found = load_model(target, config, torch.float32, torch.device("cpu"))
    wanted = load_model(source, load_config(source), torch.float32, torch.device("cpu"))
    texts = list(calibration_texts(source, config.max_model_len, 1))
    method, bits, group, sym = options
    if method == "smoothquant":
        group, sym = -1, True
    for _ in quantize_model(wanted, texts, method, bits, group, sym):
        pass
    linears = wanted.checkpoint_linears()
    for name, (_, layer, part, rows) in found.checkpoint_linears().items():
        want = linears[name].layer.weight[rows]
        if name == "lm_head":
            assert torch.equal(layer.weight, want)
        else:
            weight = layer.quant_method.unpack(layer, part).dequantize()
            torch.testing.assert_close(weight, want, atol=1e-6, rtol=1e-6)
    if method != "smoothquant":  # which rounds what goes into a layer, too
        logits = (next_token_logits(model, [5, 6, 7, 40]) for model in (found, wanted))
        torch.testing.assert_close(*logits, atol=1e-3, rtol=1e-3)


def test_a_quantized_checkpoint_is_no_source(tmp_path):
    quantize(tmp_path / "m", "--method", "rtn", "--group", "32")
    command = ["quantize", str(tmp_path / "m"), str(tmp_path / "again")]
    done = CliRunner().invoke(app, command)
    sentence = "the source must be one of floats, got 'a checkpoint in gptq'"
    assert sentence in " ".join(done.output.split())
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--method", "best"), "method must be one of rtn, gptq, awq, smoothquant, got 'best'"),
        (("--method", "awq", "--bits", "8"), "bits must be one of (4,) with awq, got 8"),
        (("--method", "smoothquant"), "bits must be one of (8,) with smoothquant, got 4"),
        (("--bits", "3"), "bits must be one of (2, 4, 8) with gptq, got 3"),
        (("--group", "48"), "group must be -1 for whole rows, or a divisor of the 256 inputs"),
        (("--num-texts", "0"), "num_texts must be an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(tmp_path, options, sentence):
    source = str(embedded_model_path())
    done = CliRunner().invoke(app, ["quantize", source, str(tmp_path / "m"), *options])
    assert done.exit_code != 0
    assert sentence in " ".join(done.output.split())
    assert not (tmp_path / "m").exists()
