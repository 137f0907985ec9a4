"""The draft of the embedded model that ships: its files, and how well it guesses."""

import pytest
from transformers import AutoModelForCausalLM

from minivllm import LLM, SamplingParams, embedded_draft_path, embedded_model_path
from minivllm.lab.bench.speculation_texts import table_questions, texts
from minivllm.lab.sim.acceptance import Acceptance
from minivllm.lab.training import distill
from minivllm.lab.training.curriculum import DRAFT_PLAN
from minivllm.lab.training.manifest import data_hashes, file_hashes, read_manifest

DRAFT = embedded_draft_path()
MEGABYTE = 1_000_000
CHATS = {"table": table_questions(8), "essays": texts()["essays"].chats}
LOOKUP = {"model": {}, "ngrams": {"prompt_lookup_min": 2, "prompt_lookup_max": 3}}
# Tokens that an answer gains in a step, as measured, by who is asked first.
MEASURED = {
    "model": {"table": 3.0, "essays": 3.6},
    "ngrams": {"table": 2.8, "essays": 3.6},
}
MARGIN = 0.25


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
    assert manifest["data"] == data_hashes(manifest["seed"], DRAFT_PLAN.stages)


def engine(speculative_config):
    return LLM(
        max_model_len=2048, num_gpu_blocks_override=1200, trace=True,
        speculative_config=speculative_config,
    )  # fmt: skip


def texts_of(llm, chats):
    params = SamplingParams(temperature=0, max_tokens=60)
    return [o.outputs[0].text for o in llm.chat(chats, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def plain():
    llm = engine(None)
    return {kind: texts_of(llm, chats) for kind, chats in CHATS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("first", MEASURED)
def test_it_guesses_as_well_as_was_measured(plain, first):
    """Alone, and where no n-gram is found; and no text is another one."""
    llm, found = engine({"model": str(DRAFT), "num_speculative_tokens": 3, **LOOKUP[first]}), {}
    for kind, chats in CHATS.items():
        llm.llm_engine.trace.clear()
        assert texts_of(llm, chats) == plain[kind]
        found[kind] = Acceptance.of(llm.llm_engine.trace).tokens_per_step
    assert all(found[kind] > measured - MARGIN for kind, measured in MEASURED[first].items()), found
