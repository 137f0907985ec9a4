"""The fast path on a CPU: applied once, from outside; without it the plain model runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.attention.selector import make_backend
from minivllm.cpu import apply as cpu
from minivllm.cpu import linear
from minivllm.embedded import embedded_model_path
from minivllm.models.linear import UnquantizedLinearMethod
from minivllm.models.loader import load_config, load_model
from minivllm.utils import numba_support

CPU = torch.device("cpu")
FOLDER = Path(cpu.__file__).parent
WAYS = {
    "compiled": {},
    "fused": {"attention_backend": "paged_torch"},
    "eager": {"enforce_eager": True},
    "plain": {"enforce_eager": True, "attention_backend": "reference"},
}


def load(directory, dtype=torch.float32):
    return load_model(directory, load_config(directory), dtype, CPU)


def generate(**kwargs):
    llm = LLM(
        block_size=16, max_model_len=80, max_num_batched_tokens=24, num_gpu_blocks_override=12,
        **kwargs,
    )  # fmt: skip
    prompts = ["The capital of France is", "Hello, my name is", "The capital of Japan is"]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_way_says_the_same_tokens(dtype):
    answers = {way: generate(dtype=dtype, **kwargs) for way, kwargs in WAYS.items()}
    assert all(answer == answers["plain"] for answer in answers.values())


ENTERED = """
import json, sys
from minivllm import LLM, SamplingParams
llm = LLM(dtype="float32", **json.loads(sys.argv[1]))
engine, files = llm.llm_engine, set()
engine.add_request("a", {"prompt_token_ids": [5, 6, 7]}, SamplingParams(temperature=0))
engine.step()
sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename))
engine.step()
sys.setprofile(None)
print(json.dumps([sorted(f for f in files if "minivllm" in f), "numba" in sys.modules]))
"""


def entered(way):
    """Files of the fast path that a decode step enters, and whether numba was imported."""
    command = [sys.executable, "-c", ENTERED, json.dumps(WAYS[way])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    files, has_numba = json.loads(done.stdout.splitlines()[-1])
    return [file for file in files if "/minivllm/cpu/" in file], has_numba


@pytest.mark.slow
def test_a_plain_step_enters_nothing_of_the_fast_path():
    assert entered("plain") == ([], False)
    assert entered("compiled")[0]


def test_an_eager_model_is_as_it_was_loaded(capsys):
    llm = LLM(enforce_eager=True)
    assert "INFO Using plain modules: enforce_eager=True.\n" in capsys.readouterr().out
    model = llm.llm_engine.model_runner.model
    assert model.transforms == []
    assert type(model.lm_head.quant_method) is UnquantizedLinearMethod
    assert not {"forward", "compute_logits"} & set(vars(model))


def said(model, backend, capsys):
    capsys.readouterr()
    cpu.apply(model, make_backend(backend, CPU))
    return capsys.readouterr().out


def test_the_log_says_what_runs(monkeypatch, capsys):
    directory = embedded_model_path()
    for dtype, backend, line in (
        (torch.float32, "paged_numba", "compiled layers: a CPU, and numba is installed"),
        (torch.float32, "paged_torch",
         "modules with fused operations: compiled layers need paged_numba attention"),
        (torch.float16, "paged_numba", "modules: float16 has no compiled loops"),
    ):  # fmt: skip
        assert said(load(directory, dtype), backend, capsys) == f"INFO Using {line}.\n"
    monkeypatch.setattr(numba_support, "version", lambda package: "0.66.0")
    line = "INFO Using modules: numba is too old.\n"
    assert said(load(directory), "paged_torch", capsys) == line


def test_without_numba_the_operations_are_those_in_torch(monkeypatch):
    monkeypatch.setattr(numba_support, "find_spec", lambda package: None)
    model = load(embedded_model_path())
    attributes = [dict(vars(module)) for module in model.model.modules()]
    cpu.apply(model, make_backend("paged_torch", CPU))
    for module, before in zip(model.model.modules(), attributes, strict=True):
        same = {name: value for name, value in before.items() if name not in ("quant_method",)}
        assert all(vars(module)[name] is value for name, value in same.items())


def test_a_transform_is_applied_once_and_to_what_it_knows():
    model, backend = load(embedded_model_path()), make_backend("reference", CPU)
    cpu.apply(model, backend)
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"has been applied to this {name}; it can be only once"):
        cpu.apply(model, backend)
    assert model.transforms == ["cpu"]
    with pytest.raises(ValueError, match="takes a DecoderModel or an EncoderModel, got Linear"):
        cpu.apply(torch.nn.Linear(2, 2), backend)
    elsewhere = load(embedded_model_path()).to("meta")
    with pytest.raises(ValueError, match=f"takes a model on a CPU, got a {name} on meta"):
        cpu.apply(elsewhere, backend)
    assert elsewhere.transforms == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_tied_embedding_reads_the_heads_panels(dtype, monkeypatch):
    """Its weight is in memory once; a small one keeps its own."""
    pytest.importorskip("numba")
    method = linear.panel_method(dtype)
    if method.row_dtype != dtype:
        pytest.skip("this processor has no instructions for bfloat16")
    monkeypatch.setattr(linear, "choose_method", lambda weight: method)
    directory, ids = embedded_model_path(), torch.tensor([0, 77, 4, 77])
    for most, num_copies in ((linear.IN_CACHE, 2), (0, 1)):
        monkeypatch.setattr(linear, "IN_CACHE", most)
        plain, model = load(directory, dtype), load(directory, dtype)
        cpu.apply(model, make_backend("paged_numba", CPU))
        embedding, head = model.model.embed_tokens, model.lm_head
        assert torch.equal(embedding(ids), plain.model.embed_tokens(ids))
        held = sum(p.nbytes for p in (*embedding.parameters(), *head.parameters()))
        assert held == num_copies * plain.lm_head.weight.nbytes


def test_the_readme_has_every_file():
    page = (FOLDER / "README.md").read_text()
    files = {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.py")}
    assert {f for f in files if not f.endswith("__init__.py") and f"]({f})" not in page} == set()


def test_executors_pass_on_what_ranks_have_measured_and_know_nothing_of_it():
    for file in (FOLDER.parent / "executor").glob("*.py"):
        assert "minivllm.cpu" not in file.read_text(), file


def test_the_plain_model_mentions_nothing_of_it():
    """Neither of numba nor of threads."""
    for file in (FOLDER.parent / "models").glob("*.py"):
        assert not re.search(r"numba|thread|minivllm\.cpu", file.read_text(), re.IGNORECASE), file
