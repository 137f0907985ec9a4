"""A rank is a thinner model: its weights, what ranks exchange, and that they compute the same."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import CONFIGS, as_bin, make_model

from minivllm.embedded import embedded_model_path
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.ranks import run_ranks
from minivllm.models.loader import load_config, load_model

CPU = torch.device("cpu")
GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 32}
MODELS = {
    "llama": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "llama-few-tokens": ("Llama", {"vocab_size": 70}),  # the last of four ranks has only padding
    "llama-grouped": ("Llama", GROUPED | {"tie_word_embeddings": True}),
    "llama-biases": CONFIGS["llama-biases"][:2],
    "qwen3": CONFIGS["qwen3"][:2],
    "gemma3": CONFIGS["gemma3"][:2],
    "gpt2": CONFIGS["gpt2"][:2],
    "gpt2-inner-untied": CONFIGS["gpt2-inner-untied"][:2],
    "opt": CONFIGS["opt"][:2],
}
IDS = random.Random(3).choices(range(70), k=20)


@pytest.fixture(scope="module", params=MODELS)
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    family, changes = MODELS[request.param]
    make_model(family, **changes).save_pretrained(path)
    return path


def load(directory, group=None, dtype=torch.float32, load_format="auto"):
    config = load_config(directory)
    return load_model(directory, config, dtype, CPU, load_format, group=group)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_logits_are_those_of_one_model(directory, size, load_format):
    def logits(group):
        found = next_token_logits(load(directory, group, load_format=load_format), IDS)
        return found, Counter(operation.op for operation in group.operations)

    whole = load(directory, load_format=load_format)
    results = run_ranks(size, logits)
    for found, operations in results:
        torch.testing.assert_close(found, next_token_logits(whole, IDS), atol=2e-5, rtol=2e-5)
        assert torch.equal(found, results[0][0])  # so that all of them sample the same token
        assert operations == {"all_reduce": 2 * whole.config.num_layers + 1, "all_gather": 1}


@pytest.mark.parametrize("load_format", ["safetensors", "pt", "dummy"])
def test_the_ranks_weights_are_slices_of_one_models(directory, tmp_path, load_format):
    """Each number is on a rank; those of column- and row-parallel layers on exactly one."""
    if load_format == "pt":
        directory = as_bin(directory, tmp_path / "bin")
    whole = load(directory, load_format=load_format)
    ranks = run_ranks(2, lambda group: load(directory, group, load_format=load_format))
    for (path, layer), *parts in zip(
        whole.named_modules(), *(rank.modules() for rank in ranks), strict=True
    ):
        for kind, want in layer.named_parameters(recurse=False):
            got = [dict(part.named_parameters(recurse=False)).get(kind) for part in parts]
            name = path.rpartition(".")[2]
            if name in ("o_proj", "down_proj") and kind == "bias":
                assert torch.equal(got[0], want)
                assert got[1] is None
            elif name in ("o_proj", "down_proj"):
                assert torch.equal(torch.cat(got, 1), want)
            elif name in ("embed_tokens", "lm_head"):
                assert [len(part) for part in got] == [64, 64]
                assert torch.equal(torch.cat(got)[: len(want)], want)
                assert not torch.cat(got)[len(want) :].any()
            elif name in ("qkv_proj", "gate_up_proj", "up_proj"):
                sizes = list(getattr(layer, "output_sizes", {name: len(want)}).values())
                halves = [part.split([n // 2 for n in sizes]) for part in got]
                joined = [torch.cat(both) for both in zip(*halves, strict=True)]
                assert torch.equal(torch.cat(joined), want)
            else:
                assert all(torch.equal(part, want) for part in got)


def test_heads_of_k_and_v_are_repeated_where_they_are_fewer_than_ranks(tmp_path):
    make_model("Llama", **GROUPED).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"]
    for rank, model in enumerate(run_ranks(4, lambda group: load(tmp_path, group))):
        qkv = model.model.layers[0].self_attn.qkv_proj
        assert qkv.num_heads == (2, 1, 1)
        assert model.config.kv_bytes_per_token() == load_config(tmp_path).kv_bytes_per_token() // 2
        head = rank // 2
        assert torch.equal(qkv.weight[8:12], stored[4 * head : 4 * head + 4])


def test_a_rank_has_half_of_the_embedded_models_weights():
    """Its vocabulary of 3,157 tokens is padded to 3,200."""
    source = embedded_model_path()
    whole = sum(p.nbytes for p in load(source).parameters())
    for model in run_ranks(2, lambda group: load(source, group)):
        assert model.model.embed_tokens.weight.shape[0] == 1600
        assert sum(p.nbytes for p in model.parameters()) <= 0.55 * whole


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_a_checkpoint_that_does_not_fit_is_refused_by_every_rank(directory, tmp_path, change):
    config = load_config(directory)
    tensors = load_file(directory / "model.safetensors")
    name = next(n for n in tensors if n.endswith(("c_proj.bias", "o_proj.weight", "out_proj.bias")))
    if change == "missing":
        tensors.pop(name)
    elif change == "unknown":
        tensors["model.nonsense.bias"] = torch.ones(3)
    else:
        tensors[name] = torch.cat([tensors[name]] * 2)
    save_file(tensors, tmp_path / "model.safetensors")
    words = {
        "missing": f"lacks 1 tensors.*{name}",
        "unknown": "has 1 unknown tensors.*nonsense",
        "shape": f"{name}' has shape",
    }[change]

    def refused(group):
        with pytest.raises(ValueError, match=words):
            load_model(tmp_path, config, torch.float32, CPU, group=group)

    run_ranks(2, refused)


PEAKS = """
import pathlib, sys, torch
from minivllm.distributed.group import Alone
from minivllm.models.loader import load_config, load_model

def status(field):
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(text.split(f"{field}:")[1].split()[0])

def peak(rank, size):
    before, group = status("VmRSS"), Alone()  # ranks exchange nothing while they load
    group.rank, group.size = rank, size
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    load_model(sys.argv[1], config, torch.float32, torch.device("cpu"), group=group)
    return status("VmHWM") - before

config = load_config(sys.argv[1])
peak(0, 1)  # something is imported with the first model
print(peak(1, 2), peak(0, 1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it tells its peak of memory in /proc")
def test_a_rank_reads_no_more_than_its_share(tmp_path):
    """Its peak of memory while it loads, pages of the file included."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 6400}
    make_model("Llama", **sizes).save_pretrained(tmp_path)
    num_bytes = (tmp_path / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", PEAKS, str(tmp_path)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    rank, whole = map(int, done.stdout.split())
    assert whole >= 0.8 * num_bytes
    assert rank <= 0.6 * whole
