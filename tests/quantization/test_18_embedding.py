"""The embedding of a quantized model: in the file's bits, and in memory once if it is the head."""

import pytest
import quantized_checkpoints as qc
import torch
from adapters import tensors_for, write_adapter
from helpers import make_llm
from safetensors.torch import load_file, save_file
from test_18_checkpoints import CASES, logits
from test_18_gguf import make_model, write

from minivllm import SamplingParams
from minivllm.cpu import linear
from minivllm.lora.request import LoRARequest
from minivllm.quantization.gguf.reader import GGUFReader
from minivllm.quantization.gguf.types import TYPES

pytest.importorskip("numba")
from minivllm.cpu.gemm.panels import LANES

NUMBERS = {kind.name: number for number, kind in TYPES.items()}
EMBEDDING = "model.embed_tokens.weight"
IDS = torch.tensor([5, 0, 49, 5])


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def halves(request, tmp_path_factory):
    """A float16 checkpoint, GPTQ's: Qwen2's embedding is its head, Llama's is not."""
    directory = tmp_path_factory.mktemp("halves")
    plain = qc.write_float(request.param, directory / "float")
    config, packer, options, more = CASES["gptq"]
    qc.write_quantized(plain, directory / "m", config, packer, options, **more)
    for file in (directory / "m/model.safetensors", directory / "m/twin/model.safetensors"):
        tensors = load_file(file)
        for name in (EMBEDDING, "lm_head.weight"):
            if name in tensors:
                tensors[name] = tensors[name].half()
        save_file(tensors, file)
    return directory / "m"


def model_of(llm):
    return llm.llm_engine.model_runner.model


def vocabulary_bytes(model):
    parameters = (*model.model.embed_tokens.parameters(), *model.lm_head.parameters())
    return {p.data_ptr(): p.nbytes for p in parameters}


@pytest.mark.parametrize("eager", [False, True])
def test_16_bits_stay_16_bits_and_a_tied_weight_is_there_once(halves, eager):
    llm = make_llm(halves, dtype="float32", enforce_eager=eager)
    model, stored = model_of(llm), load_file(halves / "model.safetensors")[EMBEDDING]
    assert torch.equal(model.model.embed_tokens(IDS), stored[IDS].float())
    num_tables = 1 if model.config.tie_word_embeddings else 2
    assert sum(vocabulary_bytes(model).values()) == num_tables * stored.nbytes
    want = logits(make_llm(halves / "twin", dtype="float32"))
    assert torch.allclose(logits(llm), want, atol=1e-4, rtol=1e-5)


# bytes of a number in panels, with its share of a scale and a minimum
IN_PANELS = {
    "F16": 2, "Q4_0": 0.5 + 2 / 32, "Q4_1": 0.5 + 4 / 32, "Q4_K": 0.5 + 8 / 32, "Q5_0": 1 + 2 / 32,
    "Q8_0": 1 + 2 / 32, "Q6_K": 1 + 4 / 16,
}  # fmt: skip


@pytest.fixture(scope="module", params=IN_PANELS)
def tied_gguf(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    write(path, make_model("Qwen2", tie_word_embeddings=True), NUMBERS[request.param])
    return path


@pytest.mark.parametrize("eager", [False, True])
def test_look_ups_dequantize_rows_of_the_file(tied_gguf, eager):
    model = model_of(make_llm(tied_gguf, enforce_eager=eager))
    want = GGUFReader(tied_gguf).dequantize("token_embd.weight")
    ids = torch.tensor([0, 95, 64, 7, 7])
    found = model.model.embed_tokens(ids)
    assert found.dtype == torch.float32
    assert torch.equal(found, want[ids])


def test_the_memory_that_is_printed_is_that_of_the_files_bits(tied_gguf):
    llm, reader = make_llm(tied_gguf), GGUFReader(tied_gguf)
    head = -(-96 // LANES) * LANES  # the last panel is filled up, but for floats
    want = 0.0
    for name, info in reader.tensors.items():
        each = 4.0 if len(info.shape) == 1 else IN_PANELS[tied_gguf.stem]
        if tied_gguf.stem == "F16" and name != "token_embd.weight":
            each = 4.0  # in float32, as the model's activations
        rows = head if name == "token_embd.weight" and tied_gguf.stem != "F16" else info.shape[0]
        want += each * rows * (info.shape[1] if len(info.shape) == 2 else 1)
    assert llm.profile_memory().weights == want


def test_parts_of_unlike_types_are_in_panels_of_their_own(tmp_path):
    """Files that are named Q4_K_M are so: values have more bits than queries and keys."""
    theirs, path = make_model("Llama"), tmp_path / "mixed.gguf"
    write(path, theirs, {"attn_v": NUMBERS["Q6_K"], "ffn_up": 1, "": NUMBERS["Q4_K"]})
    llm = make_llm(path)
    attention = model_of(llm).model.layers[0].self_attn
    assert len(attention.qkv_proj.quant_method.parts) == 2
    want = theirs(torch.tensor([[3, 17, 40, 8, 8, 25]])).logits[0, -1]
    assert torch.allclose(logits(llm), want, atol=1e-4, rtol=1e-5)


# -- beside other features -----------------------------------------------------------------------

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


def answers(llm, **kwargs):
    """Tokens of two requests, and their logprobs."""
    found = llm.generate([[3, 17, 40], [8, 25]], GREEDY, use_tqdm=False, **kwargs)
    chosen = [o.outputs[0] for o in found]
    return [o.token_ids for o in chosen], torch.tensor([o.cumulative_logprob for o in chosen])


def test_in_bfloat16_a_tied_head_is_in_pairs_and_there_once(halves):
    if not linear.is_paired(torch.bfloat16):
        pytest.skip("this processor has no instructions for bfloat16")
    llm = make_llm(halves, dtype="bfloat16")
    model, stored = model_of(llm), load_file(halves / "model.safetensors")[EMBEDDING]
    assert torch.equal(model.model.embed_tokens(IDS), stored[IDS].bfloat16())
    if model.config.tie_word_embeddings:
        assert type(model.lm_head.quant_method) is linear.BFloat16PanelLinearMethod
        assert sum(vocabulary_bytes(model).values()) == stored.nbytes
    want = logits(make_llm(halves, dtype="bfloat16", enforce_eager=True))
    assert torch.allclose(logits(llm), want, atol=0.05, rtol=0.05)


def test_an_adapter_on_it_is_that_on_its_dequantized_weights(halves, tmp_path):
    found = []
    for directory in (halves, halves / "twin"):
        llm = make_llm(directory, dtype="float32", enable_lora=True)
        tensors = tensors_for(model_of(llm), ("q_proj", "v_proj", "down_proj"))
        targets = ["q_proj", "v_proj", "down_proj"]
        write_adapter(tmp_path / "adapter", tensors, target_modules=targets)
        requests = [LoRARequest("sql", 1, str(tmp_path / "adapter")), None]
        found.append(answers(llm, lora_request=requests))
    assert found[0][0] == found[1][0]
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)


def test_as_target_and_as_draft(halves):
    config = {"method": "draft_model", "num_speculative_tokens": 3}
    alone = answers(make_llm(halves, dtype="float32"))
    for target, draft in ((halves, halves / "twin"), (halves / "twin", halves), (halves, halves)):
        speculative = config | {"model": str(draft)}
        llm = make_llm(target, dtype="float32", speculative_config=speculative)
        assert answers(llm)[0] == alone[0]
