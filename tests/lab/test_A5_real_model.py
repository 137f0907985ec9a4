"""Notebook A5: its exercises, the recorded table, and how its cells do without the model."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minivllm import LLM, SamplingParams
from minivllm.exercises import chA5
from minivllm.lab.quantize.measured import perplexities

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATH = NOTEBOOKS / "A5_real_model.ipynb"


@pytest.fixture(scope="module")
def llm():
    return LLM(max_model_len=512, num_gpu_blocks_override=65)


@pytest.mark.parametrize("seed", range(3))
def test_a_chat_of_the_engine_hits_what_the_exercise_says(seed, llm):
    exercise = chA5.hits(seed=seed)
    prompt, found = [], []
    for turn, (question, answer) in enumerate(exercise.given["turns"]):
        prompt += [100 + seed * 10 + turn] * question
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": list(prompt)}, params, use_tqdm=False)
        found.append(output.num_cached_tokens)
        prompt += output.outputs[0].token_ids
    assert found == exercise.solve()


def test_the_exercises_perplexity_is_that_of_prompt_logprobs(llm):
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate("The capital of France is Paris.", params, use_tqdm=False)
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    logprobs = [found and found[token].logprob for token, found in pairs]
    found = chA5.perplexity(seed=0).solve()(logprobs)
    assert 1 < found < 50


def test_the_recorded_table_keeps_what_it_promises():
    tables = perplexities()
    floats = tables["caches"]["float32"]
    for name, most in {"bfloat16": 1.02, "int8_per_token_head": 1.02, "fp8": 1.05}.items():
        assert 1 < tables["caches"][name] <= most * floats
    assert set(tables["weights"]) == {"int8", "int4", "GPTQ", "AWQ"}
    assert tables["weights"]["int8"] < 1.02 * floats < tables["weights"]["int4"]


def test_a_cell_that_needs_the_model_says_so_and_is_marked():
    """It prints the sentence in one branch, and has the tag; no other cell does."""
    for cell in nbformat.read(PATH, as_version=4).cells:
        needs = "if smollm2:" in cell.source
        assert needs == ("needs-real" in cell.metadata.get("tags", ()))
        assert needs == cell.source.endswith("else:\n    print(missing)")


# -- a strict run without the model ----------------------------------------------------------------

NEEDS = """from minivllm.models.packages import pulled_model

try:
    print(pulled_model("smollm2"))
except FileNotFoundError as missing:
    print(missing)"""


def save(path, *cells):
    """A notebook of cells of (source, stored text, tags)."""
    written = [
        nbformat.v4.new_code_cell(
            source,
            execution_count=number,
            metadata={"tags": tags},
            outputs=[nbformat.v4.new_output("stream", name="stdout", text=text)],
        )
        for number, (source, text, tags) in enumerate(cells, start=1)
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=written), path)


@pytest.mark.slow
def test_a_strict_run_without_the_model_compares_what_does_not_need_it(tmp_path):
    """And a marked cell must say what is missing, and nothing else."""
    needs = (NEEDS, "an answer of the model\n", ["needs-real"])
    save(tmp_path / "same.ipynb", needs, ("print(1 + 1)", "2\n", []))
    save(tmp_path / "changed.ipynb", needs, ("print(1 + 1)", "3\n", []))
    save(tmp_path / "other.ipynb", ("print(0)", "an answer of the model\n", ["needs-real"]))
    for name in ("conftest.py", "needs_real.py"):
        shutil.copy(NOTEBOOKS / name, tmp_path)
    shutil.copy(Path(__file__).parents[1] / "chapter_marks.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-rA", "-q"]
    environment = os.environ | {"MINIVLLM_CACHE_ROOT": str(tmp_path / "nothing")}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    outcomes = re.findall(r"^(PASSED|FAILED) (\w+)\.ipynb::Cell (\d)", done.stdout, re.MULTILINE)
    assert sorted(outcomes) == [
        ("FAILED", "changed", "1"), ("FAILED", "other", "0"),
        ("PASSED", "changed", "0"), ("PASSED", "same", "0"), ("PASSED", "same", "1"),
    ]  # fmt: skip
