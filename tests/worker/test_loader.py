"""From a name to a model in memory: files of every kind, and one clear error for every mishap."""

import io
import json
import os
import shutil
import subprocess
import sys
import types

import huggingface_hub
import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import as_bin
from typer.testing import CliRunner

from minivllm import LLM, EngineArgs, LLMEngine, SamplingParams
from minivllm.cli import app
from minivllm.models.hub import model_directory, tokenizer_directory
from minivllm.models.loader import load_config, load_model
from minivllm.sampling_params import StructuredOutputsParams

CPU = torch.device("cpu")
SMALL = {"skip_tokenizer_init": True, "num_gpu_blocks_override": 40}


def load(directory, dtype=torch.float32, **kwargs):
    return load_model(directory, load_config(directory), dtype, CPU, **kwargs)


def parameters(model):
    return {name: tensor.clone() for name, tensor in model.checkpoint_tensors().items()}


def same(model, other) -> bool:
    ours, theirs = parameters(model), parameters(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


# -- fused layers --------------------------------------------------------------------------------


def test_each_shard_is_in_its_slice_and_nothing_is_there_twice(tiny_qwen2):
    model, stored = load(tiny_qwen2), load_file(tiny_qwen2 / "model.safetensors")
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    name = "model.layers.1.self_attn.{}_proj.{}"
    for kind in ("weight", "bias"):
        apart = [stored[name.format(part, kind)] for part in "qkv"]
        assert torch.equal(getattr(attention.qkv_proj, kind), torch.cat(apart))
    apart = [stored[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    assert torch.equal(mlp.gate_up_proj.weight, torch.cat(apart))
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in stored.values())
    assert [name for name, _ in model.named_buffers()] == ["model.rotary_emb.cos_sin_cache"]
    (cos_sin,), config = model.buffers(), model.config
    assert cos_sin.shape == (config.max_model_len, 2, config.head_dim)
    assert model.lm_head.weight is model.model.embed_tokens.weight


# -- kinds of files ------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("fixture", ["tiny_qwen2", "tiny_llama"])
def test_bins_hold_the_same_model(request, tmp_path, fixture, shards):
    directory = request.getfixturevalue(fixture)
    assert same(load(as_bin(directory, tmp_path / "bin", shards)), load(directory))


def test_bins_from_before_torch_16(tiny_qwen2, tmp_path):
    old = as_bin(tiny_qwen2, tmp_path / "old", _use_new_zipfile_serialization=False)
    assert same(load(old), load(tiny_qwen2))


def test_load_format_chooses(tiny_qwen2, tmp_path):
    both = as_bin(tiny_qwen2, tmp_path / "both")
    zeros = {k: torch.zeros_like(v) for k, v in load_file(tiny_qwen2 / "model.safetensors").items()}
    save_file(zeros, both / "model.safetensors")
    assert same(load(both, load_format="pt"), load(tiny_qwen2))
    for choice in ("auto", "safetensors"):
        assert not any(t.any() for t in parameters(load(both, load_format=choice)).values())
    with pytest.raises(FileNotFoundError, match=r"has no pytorch_model\*\.bin file"):
        load(tiny_qwen2, load_format="pt")
    with pytest.raises(ValueError, match=r"load_format must be one of auto, .* got 'gguf'"):
        LLM(str(tiny_qwen2), load_format="gguf")


def test_dummy_weights_need_no_files_and_are_the_same_each_time(tiny_qwen2, tmp_path):
    shutil.copy(tiny_qwen2 / "config.json", tmp_path)
    model = load(tmp_path, load_format="dummy")
    assert same(model, load(tmp_path, load_format="dummy"))
    assert all(t.any() and t.abs().max() <= 1e-3 for t in parameters(model).values())
    llm = LLM(str(tmp_path), load_format="dummy", **SMALL)
    output = llm.generate([[1, 2]], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert len(output[0].outputs[0].token_ids) == 3


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_auto_keeps_the_checkpoints_dtype(tiny_qwen2, tmp_path, stored):
    transformers.Qwen2ForCausalLM.from_pretrained(tiny_qwen2, dtype=stored).save_pretrained(
        tmp_path
    )
    llm = LLM(str(tmp_path), **SMALL)
    model = llm.llm_engine.model_runner.model  # a product may keep a small weight in float32
    assert model.model.embed_tokens.weight.dtype == stored
    assert llm.llm_engine.model_runner.kv_cache.data.dtype == stored
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    half = llm.generate([[1, 2, 3]], params, use_tqdm=False)[0].outputs[0].token_ids
    assert len(half) == 4
    full = LLM(str(tmp_path), **SMALL, dtype="float32")
    weight = full.llm_engine.model_runner.model.model.embed_tokens.weight
    want = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(weight, want.float())


@pytest.mark.parametrize("family", ["Llama", "GPT2", "OPT"])
def test_checkpoints_saved_without_a_head_or_with_more_than_weights(tmp_path, family):
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"ffn_dim": 24, "word_embed_proj_dim": 16} if family == "OPT" else {}
    config = getattr(transformers, f"{family}Config")(**sizes, **more, tie_word_embeddings=True)
    config.architectures = ["GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"]
    bare = getattr(transformers, f"{family}Model")(config)
    whole = getattr(transformers, config.architectures[0])(config)
    whole.base_model.load_state_dict(bare.state_dict())
    bare.save_pretrained(tmp_path / "bare")
    whole.save_pretrained(tmp_path / "whole")
    config.save_pretrained(tmp_path / "bare")
    file = tmp_path / "whole" / "model.safetensors"
    ballast = {
        "Llama": "model.layers.0.self_attn.rotary_emb.inv_freq",
        "GPT2": "transformer.h.0.attn.bias",
        "OPT": "model.layers.0.self_attn.attn.q_scale",
    }
    save_file(load_file(file) | {ballast[family]: torch.zeros(3)}, file)
    assert same(load(tmp_path / "bare"), load(tmp_path / "whole"))


# -- what is seen meanwhile ----------------------------------------------------------------------


def test_a_progress_bar_over_shards(tiny_llama, tiny_qwen2, tmp_path, capsys):
    load(tiny_llama)
    num_shards = len(list(tiny_llama.glob("*.safetensors")))
    bar = capsys.readouterr().err
    assert (
        f"Loading safetensors checkpoint shards: 100% Completed | {num_shards}/{num_shards}" in bar
    )
    load(as_bin(tiny_qwen2, tmp_path / "bin", 2))
    assert "Loading pt checkpoint shards: 100% Completed | 2/2" in capsys.readouterr().err
    load(tiny_qwen2)  # one file: nothing to wait for
    LLM(str(tiny_llama), **SMALL, use_tqdm_on_load=False)
    assert capsys.readouterr().err == ""


# -- files that are not what they should be ------------------------------------------------------


def test_a_bin_cut_short(tiny_qwen2, tmp_path):
    directory = as_bin(tiny_qwen2, tmp_path / "bin")
    data = (directory / "pytorch_model.bin").read_bytes()
    (directory / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is broken, truncated, or no plain"):
        load(directory)


class Intruder:
    ran = False

    def __reduce__(self):
        return setattr, (Intruder, "ran", True)


@pytest.mark.parametrize("content", [{"a": Intruder()}, {"a": 3}, [1, 2]])
def test_a_bin_with_other_things_than_tensors(tiny_qwen2, tmp_path, content):
    directory = as_bin(tiny_qwen2, tmp_path / "bin")
    torch.save(content, directory / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no plain dict of tensors"):
        load(directory)
    assert not Intruder.ran


def test_a_missing_bin_shard_and_a_broken_index(tiny_qwen2, tmp_path):
    directory = as_bin(tiny_qwen2, tmp_path / "bin", shards=2)
    (directory / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"00002\.bin is missing, though pytorch"):
        load(directory)
    (directory / "pytorch_model.bin.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ValueError, match=r"pytorch_model\.bin\.index\.json cannot be read"):
        load(directory)


@pytest.mark.parametrize("name", ["../../model.bin", "a/../../../b.bin", "/etc/hosts"])
def test_an_index_names_files_of_its_directory_or_of_one_beside_it(tiny_qwen2, tmp_path, name):
    directory = as_bin(tiny_qwen2, tmp_path / "bin")
    (directory / "pytorch_model.bin").rename(tmp_path / "weights.bin")
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../weights.bin"}}))
    load(directory)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ValueError, match="in its own directory or in one beside it"):
        load(directory)


def test_safetensors_that_are_none(tiny_qwen2, tmp_path):
    directory = shutil.copytree(tiny_qwen2, tmp_path / "model")
    data = bytearray((directory / "model.safetensors").read_bytes())
    data[10] ^= 0xFF  # in the header
    for content in (data, b"", b"version https://git-lfs.github.com/spec/v1"):
        (directory / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors is broken or truncated"):
            load(directory)


# -- configs that we cannot run ------------------------------------------------------------------


def llama_config(**changes):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 20,
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    return config | changes


def opt_config(**changes):
    return {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": 20, "ffn_dim": 24,
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    } | changes  # fmt: skip


def gpt2_config(**changes):
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 20, "n_embd": 16,
        "n_layer": 1, "n_head": 2,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (llama_config(architectures=["NoSuchForCausalLM"], model_type="nosuch"),
         "'NoSuchForCausalLM' is not supported; minivllm runs LlamaForCausalLM, MistralFor"),
        (llama_config(architectures=None), r"'\(none\)' is not supported"),
        ({}, r"'\(none\)' is not supported"),
        ([], r"config\.json cannot be read"),
        (llama_config(rope_scaling={"rope_type": "spiral", "factor": 2.0}),
         "rope_type='spiral' in config.json is not supported; minivllm knows default, linear, "),
        (llama_config(rope_scaling={"type": "linear", "factor": "two"}), "factor"),
        (llama_config(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5,
                      "rope_theta": 1e4}), "partial_rotary_factor=0.5"),
        (llama_config(quantization_config={"quant_method": "aqlm"}),
         r"quant_method in .*config\.json must be one of awq, .*, got 'aqlm'"),
        (llama_config(num_key_value_heads=3), "num_key_value_heads .* divisor of the 4 .* got 3"),
        (llama_config(hidden_size=2**62), "hidden_size in config.json .* to 1048576, got 46"),
        (llama_config(vocab_size=-1), "vocab_size in config.json must be .* got -1"),
        (llama_config(num_hidden_layers=2**31), "num_hidden_layers in config.json .* to 4096, got"),
        (llama_config(max_position_embeddings=2**40), "max_position_embeddings in config.json .*"),
        (llama_config(architectures=-1), r"config\.json cannot be read"),
        (llama_config(dtype=-1), "dtype=-1 in config.json"),
        (llama_config(dtype="float64"), "dtype=.*float64.* float32, float16 and bfloat16 are"),
        (opt_config(do_layer_norm_before=False), "do_layer_norm_before=False .* only True is"),
        (opt_config(word_embed_proj_dim=8), "word_embed_proj_dim=8 .* only 16 is"),
        (gpt2_config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=True"),
        (gpt2_config(add_cross_attention=True), "add_cross_attention=True"),
    ],
)  # fmt: skip
def test_a_config_we_cannot_run_is_refused_by_name(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True)


@pytest.mark.parametrize("content", [[], ["x"], "x", 3, True, None], ids=str)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "quantize_config.json"])
def test_a_file_that_is_no_object_is_a_sentence(tiny_qwen2, tmp_path, name, content):
    directory = shutil.copytree(tiny_qwen2, tmp_path / "m")
    (directory / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{name} cannot be read: it must be a JSON object, and"):
        LLM(str(directory), **SMALL)


@pytest.mark.parametrize(
    "content", ["[]", "3", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}']
)
def test_an_index_that_names_no_files_is_a_sentence(tiny_llama, tmp_path, content):
    directory = shutil.copytree(tiny_llama, tmp_path / "m")
    (directory / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json cannot be read: it "):
        LLM(str(directory), **SMALL)


READ_ALL = """
import sys
from pathlib import Path
from minivllm import LLM
from minivllm.entrypoints.terminal import talk
from minivllm.lab.quantize.checkpoint import save_checkpoint
directory = Path(sys.argv[1])
LLM(str(directory), skip_tokenizer_init=True, num_gpu_blocks_override=40, enforce_eager=True)
save_checkpoint(directory, directory / "copy", {}, {})
seen = []
talk(lambda talk: iter(seen.append(talk[0]["content"]) or "x"), sys.argv[2], quick="x")
print(ascii(seen), open(sys.argv[2]).encoding)
"""


@pytest.mark.slow
def test_files_are_read_as_utf_8_whatever_the_locale_says(tiny_llama, tmp_path):
    """Files of a model in several shards, and a system prompt, where Python would take ASCII."""
    directory, prompt = shutil.copytree(tiny_llama, tmp_path / "m"), tmp_path / "prompt.txt"
    names = ("config.json", "model.safetensors.index.json")
    for name in names:
        fields = json.loads((directory / name).read_text()) | {"größe": "世界"}
        (directory / name).write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
    text = json.dumps({"temperature": 1.0, "größe": "世界"}, ensure_ascii=False)
    (directory / "generation_config.json").write_text(text, encoding="utf-8")
    prompt.write_text("Größe 世界", encoding="utf-8")
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", READ_ALL, str(directory), str(prompt)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ascii(["Größe 世界"]) + " ANSI_X3.4-1968"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("described", [False, True])
def test_a_directory_whose_only_tokenizer_is_a_tokenizer_model(tmp_path, kind, described):
    """SentencePiece's own file: the same tokens, text back from them, and grammars."""
    written, texts = io.BytesIO(), ["the cat sat on the mat, so that was that.", "12 and 34: Ünï"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 30), model_writer=written, vocab_size=300, model_type=kind,
        byte_fallback=True, hard_vocab_limit=False, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    torch.manual_seed(0)
    sizes = {"vocab_size": theirs.vocab_size(), "max_position_embeddings": 256}
    config = transformers.LlamaConfig(**llama_config(**sizes))
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    if described:
        (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    llm = LLM(str(tmp_path), num_gpu_blocks_override=40, enforce_eager=True)
    tokenizer = llm.get_tokenizer()
    for text in ("the cat sat", "a mat  and Ünï 世", " 12"):
        ids = theirs.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == theirs.decode(ids)
    forms = {"json": {"enum": ["the cat", 12]}}
    params = SamplingParams(max_tokens=40, structured_outputs=StructuredOutputsParams(**forms))
    (output,) = llm.generate("the cat sat", params, use_tqdm=False)
    assert json.loads(output.outputs[0].text) in ("the cat", 12)


def test_code_that_comes_with_a_model_is_never_run(tmp_path, monkeypatch):
    config = llama_config(model_type="mine", auto_map={"AutoConfig": "evil.Config"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        LLM(str(tmp_path), skip_tokenizer_init=True)
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        LLM(str(tmp_path), skip_tokenizer_init=True, trust_remote_code=True)


def test_a_tokenizer_of_another_model(tiny_chat, tiny_qwen2):
    with pytest.raises(ValueError, match="the tokenizer has 256 tokens, but the model has 97"):
        LLM(str(tiny_qwen2), tokenizer=str(tiny_chat))


# -- hubs, with the download replaced ------------------------------------------------------------


class Hub:
    """Stands for a hub's snapshot_download: copies what the patterns ask for."""

    def __init__(self, repository, cache):
        self.repository, self.cache, self.calls = repository, cache, []

    def __call__(self, name, revision, cache_dir, allow_patterns, ignore_patterns):
        self.calls.append((name, revision, cache_dir))
        if name != "some/model":
            raise OSError("404: no such repository\nand a long explanation")
        for pattern in allow_patterns:
            for file in self.repository.glob(pattern):
                shutil.copy(file, self.cache)
        return str(self.cache)


@pytest.fixture
def hub(tiny_chat, tmp_path, monkeypatch):
    hub = Hub(tiny_chat, tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def test_a_name_is_downloaded_and_runs(hub):
    llm = LLM("some/model", revision="v2", download_dir="/downloads", num_gpu_blocks_override=200)
    assert set(hub.calls) == {("some/model", "v2", "/downloads")}
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    assert len(llm.generate("Hi", params, use_tqdm=False)[0].outputs[0].token_ids) == 2


def test_a_model_of_a_hub_is_talked_with(hub):
    result = CliRunner().invoke(app, ["chat", "some/model", "--quick", "Hi", "--max-tokens", "3"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert {name for name, _, _ in hub.calls} == {"some/model"}
    result = CliRunner().invoke(app, ["chat", "other/model", "--quick", "Hi"])
    assert result.exit_code == 2
    assert "the Hugging Face hub does not give it: 404: no such repository" in result.stderr


def test_bins_are_downloaded_only_where_there_are_no_safetensors(hub, tiny_chat, tmp_path):
    model_directory(EngineArgs("some/model"))
    assert (hub.cache / "model.safetensors").is_file()
    hub.cache = tmp_path / "bins"
    hub.cache.mkdir()
    hub.repository = as_bin(tiny_chat, tmp_path / "repository")
    assert model_directory(EngineArgs("some/model")) == hub.cache
    assert (hub.cache / "pytorch_model.bin").is_file()


def test_dummy_weights_are_not_downloaded(hub):
    directory = model_directory(EngineArgs("some/model", load_format="dummy"))
    assert (directory / "config.json").is_file()
    assert not list(directory.glob("*.safetensors"))


def test_a_tokenizer_of_another_name_or_revision(hub, tiny_qwen2):
    args = EngineArgs(str(tiny_qwen2), tokenizer="some/model", tokenizer_revision="v3")
    assert tokenizer_directory(args, tiny_qwen2) == hub.cache
    assert set(hub.calls) == {("some/model", "v3", None)}
    assert not list(hub.cache.glob("*.safetensors"))
    assert tokenizer_directory(EngineArgs(str(tiny_qwen2)), tiny_qwen2) == tiny_qwen2


def test_what_a_hub_cannot_give(hub, tiny_qwen2):
    message = (
        "model 'other/model' is not a directory here, and the Hugging Face hub does not give it: "
        r"404: no such repository \(check"
    )
    with pytest.raises(FileNotFoundError, match=message) as caught:
        LLM("other/model")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="revision='v2' chooses among a hub's versions"):
        LLM(str(tiny_qwen2), revision="v2")
    with pytest.raises(ValueError, match="revision must be None without a model"):
        LLM(revision="v2")
    assert not any(name == str(tiny_qwen2) for name, _, _ in hub.calls)


def test_modelscope(hub, tiny_chat, tmp_path, monkeypatch):
    other = Hub(tiny_chat, tmp_path / "modelscope")
    other.cache.mkdir()
    module = types.ModuleType("modelscope.hub.snapshot_download")
    module.snapshot_download = other
    monkeypatch.setenv("MINIVLLM_USE_MODELSCOPE", "1")
    monkeypatch.setitem(sys.modules, "modelscope.hub.snapshot_download", None)
    with pytest.raises(ValueError, match="needs the package 'modelscope'; pip install"):
        model_directory(EngineArgs("some/model"))
    for name in ("modelscope", "modelscope.hub"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    engine = LLMEngine(EngineArgs("some/model", num_gpu_blocks_override=200))
    assert engine.tokenizer is not None
    assert other.calls
    assert not hub.calls
    with pytest.raises(FileNotFoundError, match="ModelScope does not give it"):
        model_directory(EngineArgs("other/model"))
    monkeypatch.setenv("MINIVLLM_USE_MODELSCOPE", "perhaps")
    with pytest.raises(ValueError, match="MINIVLLM_USE_MODELSCOPE must be 0 or 1, got 'perhaps'"):
        model_directory(EngineArgs("some/model"))
