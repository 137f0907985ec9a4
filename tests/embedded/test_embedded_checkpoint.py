"""The embedded model that ships: its files, and what it can do."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.corpus import fingerprint
from minivllm.lab.training.curriculum import FULL_PLAN
from minivllm.lab.training.evaluate import answers, is_right
from minivllm.lab.training.manifest import file_hashes, read_manifest
from minivllm.lab.training.suites import all_suites, table_cases

pytestmark = pytest.mark.slow

CHECKPOINT = embedded_model_path()
MEGABYTE = 1_000_000


def test_checkpoint_is_small_and_reads_long_prompts():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 16 * MEGABYTE
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert model.config.model_type == "qwen2"
    assert model.config.max_position_embeddings >= 4096
    assert model.dtype == torch.float32


def test_manifest_fits_the_files_and_the_text():
    """The weights that ship were made in the way that the manifest's history tells."""
    manifest = read_manifest(CHECKPOINT)
    assert manifest["files"] == file_hashes(CHECKPOINT)
    read = {
        "2-30 rows, continued": FULL_PLAN.stages[3].mixture,
        "mostly 12-30 rows, continued": FULL_PLAN.stages[4].mixture,
        "2-30 rows, at the end": FULL_PLAN.stages[3].mixture,
    }
    seed = manifest["seed"]
    assert manifest["data"] == {
        name: fingerprint(mixture, f"{seed}-{name}") for name, mixture in read.items()
    }


@pytest.fixture(scope="module")
def llm():
    from minivllm import LLM

    return LLM(model=str(CHECKPOINT))


def share_right(llm, cases):
    found = answers(llm, cases)
    results = [is_right(case, answer) for case, answer in zip(cases, found, strict=True)]
    return sum(results) / len(results)


@pytest.mark.parametrize(("rows", "padded"), [(3, False), (10, True), (30, True)])
def test_tables_are_read_as_well_as_the_manifest_says(llm, rows, padded):
    drawing = "padded" if padded else "unpadded"
    promised = read_manifest(CHECKPOINT)["scores"]["suites"][f"table, {rows} rows, {drawing}"]
    assert share_right(llm, table_cases("table", "test", rows, padded, 24)) >= promised - 0.15


@pytest.mark.parametrize(
    "suite", ["capital, chat", "capital, text", "small talk", "tool call", "json"]
)
def test_other_skills_are_as_good_as_the_manifest_says(llm, suite):
    promised = read_manifest(CHECKPOINT)["scores"]["suites"][suite]
    cases = all_suites("test", 20)[suite][:30]
    assert share_right(llm, cases) >= promised - 0.15
