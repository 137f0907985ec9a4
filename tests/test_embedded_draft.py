"""The draft of the embedded model that ships: its files, and how well it guesses."""

import pytest
from transformers import AutoModelForCausalLM

from minivllm import LLM, SamplingParams, embedded_draft_path, embedded_model_path
from minivllm.embedded.training import distill
from minivllm.embedded.training.manifest import data_hashes, file_hashes, read_manifest
from minivllm.lab.bench.speculation_texts import table_questions, texts
from minivllm.lab.sim.acceptance import Acceptance

DRAFT = embedded_draft_path()
MEGABYTE = 1_000_000
# Tokens that an answer gains in a step, as measured, and how much less is still as good.
MEASURED = {"table": 3.3, "essays": 3.4}
MARGIN = 0.2


def test_it_is_small_and_has_the_models_own_tokens():
    assert sum(path.stat().st_size for path in DRAFT.iterdir()) <= 2.5 * MEGABYTE
    tokenizer = "tokenizer.json"
    assert (DRAFT / tokenizer).read_bytes() == (embedded_model_path() / tokenizer).read_bytes()
    draft, model = map(AutoModelForCausalLM.from_pretrained, (DRAFT, embedded_model_path()))
    assert draft.config.vocab_size == model.config.vocab_size
    assert draft.num_parameters() < model.num_parameters() / 4
    assert {name: getattr(draft.config, name) for name in distill.SIZES} == distill.SIZES


def test_manifest_fits_the_files_and_the_text():
    manifest = read_manifest(DRAFT)
    assert manifest["files"] == file_hashes(DRAFT)
    assert manifest["data"] == data_hashes(manifest["seed"], distill.PLAN.stages)


@pytest.fixture(scope="module")
def plain():
    return engine(None)


def engine(lookup):
    config = {"model": str(DRAFT), "num_speculative_tokens": 3, **(lookup or {})}
    return LLM(
        max_model_len=2048, num_gpu_blocks_override=1200, trace=True,
        speculative_config=None if lookup is None else config,
    )  # fmt: skip


def texts_of(llm, chats):
    params = SamplingParams(temperature=0, max_tokens=60)
    return [o.outputs[0].text for o in llm.chat(chats, params, use_tqdm=False)]


def test_it_guesses_as_well_as_was_measured(plain):
    """Alone, and behind n-grams, which copy what it cannot know; and no text is another one."""
    found = {}
    for name, lookup in (("draft", {}), ("both", {"prompt_lookup_min": 2, "prompt_lookup_max": 3})):
        llm = engine(lookup)
        for kind, chats in (("table", table_questions(8)), ("essays", texts()["essays"].chats)):
            llm.llm_engine.trace.clear()
            assert texts_of(llm, chats) == texts_of(plain, chats)
            found[name, kind] = Acceptance.of(llm.llm_engine.trace).tokens_per_step
    for kind, measured in MEASURED.items():
        assert found["draft", kind] > measured - MARGIN
    assert found["both", "table"] > found["draft", "table"]
