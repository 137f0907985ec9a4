"""Every architecture against transformers: logits, and greedy tokens out of the engine."""

import random
import re
from pathlib import Path

import pytest
import torch
from small_models import CONFIGS, make_model

from minivllm import LLM, SamplingParams
from minivllm.lab.oracle import next_token_logits
from minivllm.models import registry
from minivllm.models.loader import load_config, load_model

# Pools that are too small for some requests at once. Windows need less, and a block of several
# groups is a smaller one; only with all blocks kept for others is a prefix found that early.
POOLS = {
    "mistral": {"num_gpu_blocks_override": 12},
    "qwen2-window": {"num_gpu_blocks_override": 24, "prefix_cache_retention_interval": None},
    "gemma3": {"num_gpu_blocks_override": 24, "prefix_cache_retention_interval": None},
    "gemma3-linear-untied": {
        "num_gpu_blocks_override": 28, "prefix_cache_retention_interval": None,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory):
    """transformers' model, the directory it was saved in, and the longest sequence."""
    family, changes, max_len = CONFIGS[request.param]
    model = make_model(family, **changes)
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory)
    return model, directory, max_len


@pytest.mark.bits
def test_logits_are_those_of_transformers(checkpoint):
    theirs, directory, max_len = checkpoint
    config = load_config(directory)
    assert config.max_model_len == max_len
    ours = load_model(directory, config, torch.float32, torch.device("cpu"))
    ids = random.Random(3).choices(range(97), k=max_len)
    for length in (1, 9, 33, max_len):
        with torch.no_grad():
            want = theirs(torch.tensor([ids[:length]])).logits[0, -1]
        torch.testing.assert_close(next_token_logits(ours, ids[:length]), want, atol=1e-4, rtol=0)


def test_linear_layers_have_their_names_in_transformers(checkpoint):
    """Each is one of ours or some rows of one, weight and bias; none of ours is left over."""
    theirs, directory, _ = checkpoint
    ours = load_model(directory, load_config(directory), torch.float32, torch.device("cpu"))
    linears = ours.checkpoint_linears()
    modules = {n: m for n, m in theirs.named_modules() if type(m).__name__ in ("Linear", "Conv1D")}
    assert linears.keys() == modules.keys()
    for name, (path, layer, part, rows) in linears.items():
        weight, bias = modules[name].weight, modules[name].bias
        want = weight.T if type(modules[name]).__name__ == "Conv1D" else weight
        assert ours.get_submodule(path) is layer
        assert part == path.rpartition(".")[2] or part in layer.output_sizes
        assert torch.equal(layer.weight[rows], want)
        assert (bias is None and layer.bias is None) or torch.equal(layer.bias[rows], bias)


def clear_tokens(model, prompt: list[int], max_tokens: int) -> tuple[list[int], bool]:
    """transformers' greedy tokens as long as the choice is clear, and whether all were."""
    ids = list(prompt)
    for _ in range(max_tokens):
        with torch.no_grad():
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < 1e-4:
            return ids[len(prompt) :], False
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], True


@pytest.mark.slow
def test_the_engine_says_what_transformers_says(checkpoint, request):
    """With prefix caching, prompts in chunks, and a pool that is too small for all of them."""
    theirs, directory, _ = checkpoint
    pool = POOLS.get(request.node.callspec.params["checkpoint"], {"num_gpu_blocks_override": 13})
    llm = LLM(
        str(directory), skip_tokenizer_init=True, block_size=4, max_model_len=40,
        max_num_batched_tokens=11, use_tqdm_on_load=False, **pool,
    )  # fmt: skip
    rng = random.Random(5)
    common = rng.choices(range(96), k=13)
    prompts = [common[:n] + rng.choices(range(96), k=5) for n in (8, 13, 0, 13, 9)]
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert any(output.num_cached_tokens for output in outputs)
    all_clear = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        want, clear = clear_tokens(theirs, prompt, 9)
        assert output.outputs[0].token_ids[: len(want)] == want
        all_clear += clear
    assert all_clear >= 4


@pytest.mark.bits
def test_the_page_on_adding_a_model(tmp_path, monkeypatch):
    """The file that the page shows is written, registered as it says, and equals transformers."""
    page = (Path(registry.__file__).parent / "README.md").read_text()
    file, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    architecture, module = re.fullmatch(r'    "(\w+)": "minivllm\.models\.(\w+)",\n', line).groups()
    (tmp_path / f"{module}.py").write_text(file)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.MODELS, architecture, module)
    theirs = make_model("Gemma", num_key_value_heads=1, head_dim=16, tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path)
    config = load_config(tmp_path)
    ours = load_model(tmp_path, config, torch.float32, torch.device("cpu"))
    ids = random.Random(3).choices(range(97), k=20)
    with torch.no_grad():
        want = theirs(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(next_token_logits(ours, ids), want, atol=1e-4, rtol=0)
    llm = LLM(str(tmp_path), skip_tokenizer_init=True, num_gpu_blocks_override=9)
    params = SamplingParams(temperature=0, max_tokens=1)
    output = llm.generate([ids], params, use_tqdm=False)[0]
    assert output.outputs[0].token_ids == [int(want.argmax())]


def test_every_model_file_is_on_the_page():
    page = (Path(registry.__file__).parent / "README.md").read_text()
    files = {file.name for file in Path(registry.__file__).parent.glob("*.py")} - {"__init__.py"}
    assert {f for f in files if f"]({f})" not in page} == set()
