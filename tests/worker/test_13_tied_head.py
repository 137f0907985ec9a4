"""The head of a checkpoint is the one that is used, whatever its config.json says of tying."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from helpers import make_llm, workers_of
from safetensors.torch import load_file, save_file
from small_models import as_bin, make_model

from minivllm import SamplingParams
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.quantize.command import run_quantize
from minivllm.models.loader import load_config, load_model

CPU = torch.device("cpu")
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "GPT2", "OPT")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
IDS = random.Random(3).choices(range(97), k=20)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def say(directory, tied):
    """Let config.json say that head and embedding are one, or two."""
    file = Path(directory) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": tied}))
    return directory


def own_head(directory, family="Llama", **kwargs):
    """A checkpoint with a head of its own, and a config.json that says "tied"."""
    make_model(family, tie_word_embeddings=False).save_pretrained(directory, **kwargs)
    return say(directory, True)


def load(directory, dtype=torch.float32, **kwargs):
    return load_model(directory, load_config(directory), dtype, CPU, **kwargs)


def assert_logits_are_those_of_transformers(directory, ours=None):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        want = theirs(torch.tensor([IDS])).logits[0, -1]
    found = next_token_logits(ours or load(directory), IDS)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
    return theirs


def tokens(llm):
    (output,) = llm.generate([{"prompt_token_ids": IDS}], GREEDY, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def wanted(theirs):
    ids = torch.tensor([IDS])
    found = theirs.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    return found[0, len(IDS) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_its_own_is_used_and_the_log_says_so(tmp_path, caplog, family):
    theirs = assert_logits_are_those_of_transformers(own_head(tmp_path, family))
    (warning,) = [r for r in caplog.records if r.name.startswith("minivllm")]
    assert f"{tmp_path / 'config.json'} says tie_word_embeddings=true" in warning.message
    assert tokens(make_llm(tmp_path, enforce_eager=family != "Llama")) == wanted(theirs)


@pytest.mark.parametrize("form", ["shards", "bin", "bins", "old bin", "no prefix"])
@pytest.mark.parametrize("family", ["Qwen2", "GPT2", "OPT"])
def test_in_every_kind_of_file(tmp_path, family, form):
    directory = own_head(tmp_path / "m", family, max_shard_size="20KB" if form == "shards" else 1e9)
    theirs = assert_logits_are_those_of_transformers(directory)
    if form == "no prefix":
        file, prefix = directory / "model.safetensors", f"{theirs.base_model_prefix}."
        renamed = {n.removeprefix(prefix): t for n, t in load_file(file).items()}
        save_file(renamed, file, {"format": "pt"})
    elif form != "shards":
        old = {"_use_new_zipfile_serialization": False} if form == "old bin" else {}
        directory = as_bin(directory, tmp_path / "b", 3 if form == "bins" else 1, **old)
    assert_logits_are_those_of_transformers(tmp_path / "m", load(directory))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_equal_head_stays_shared(tmp_path, caplog, family, stored):
    """In the dtype that the model has: a head that was stored in more bits is no other one."""
    make_model(family, tie_word_embeddings=True).to(torch.bfloat16).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (embedding,) = [t for n, t in tensors.items() if n.endswith(EMBEDDINGS)]
    tensors["lm_head.weight"] = embedding.to(stored, copy=True)
    save_file(tensors, file, {"format": "pt"})
    model = load(tmp_path, torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not [r for r in caplog.records if r.name.startswith("minivllm")]
    tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, file, {"format": "pt"})
    assert not load(tmp_path, torch.bfloat16).config.tie_word_embeddings


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_alone_is_the_embedding_too(tmp_path, family):
    """The first of two names for one tensor is what ``safetensors.torch.save_model`` keeps."""
    make_model(family, tie_word_embeddings=True).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (name,) = [n for n in tensors if n.endswith(EMBEDDINGS)]
    save_file(tensors | {"lm_head.weight": tensors.pop(name)}, file, {"format": "pt"})
    theirs = assert_logits_are_those_of_transformers(tmp_path)
    llm = make_llm(
        tmp_path, distributed_executor_backend="together", tensor_parallel_size=2,
        pipeline_parallel_size=3, enforce_eager=True,
    )  # fmt: skip
    assert tokens(llm) == wanted(theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_head_the_embedding_is_one_and_the_log_says_so(tmp_path, caplog, family):
    theirs = make_model(family, tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path)
    model = load(say(tmp_path, False))
    assert f"{tmp_path / 'config.json'} says tie_word_embeddings=false" in caplog.text
    assert model.lm_head.weight is model.model.embed_tokens.weight
    say(tmp_path, True)
    assert_logits_are_those_of_transformers(tmp_path, model)


@pytest.mark.parametrize(
    ("family", "sizes"), [("Qwen2", (2, 1)), ("GPT2", (1, 3)), ("OPT", (2, 2))]
)
def test_ranks_have_that_head(tmp_path, family, sizes):
    theirs = assert_logits_are_those_of_transformers(own_head(tmp_path, family))
    tp, pp = sizes
    llm = make_llm(
        tmp_path, distributed_executor_backend="together", tensor_parallel_size=tp,
        pipeline_parallel_size=pp, enforce_eager=True,
    )  # fmt: skip
    assert tokens(llm) == wanted(theirs)
    assert not workers_of(llm)[0].model.config.tie_word_embeddings


def test_a_head_that_is_not_rounded_stays_its_own(tmp_path):
    """Tokens of an untied config, whose other layers are rounded in the same way."""
    how = {"quantization": "int4", "enforce_eager": True}
    found = tokens(make_llm(own_head(tmp_path), **how))
    assert found == tokens(make_llm(say(tmp_path, False), **how))


def test_a_quantizer_writes_both(tmp_path, tiny_chat):
    directory = own_head(shutil.copytree(tiny_chat, tmp_path / "m"))
    run_quantize(directory, tmp_path / "q", "rtn", 8, -1, True, 1)
    stored, written = (load_file(d / "model.safetensors") for d in (directory, tmp_path / "q"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(stored[name], written[name])
