"""Pooling models on two ranks: hidden states are whole on each, and each pools them."""

import pytest
from helpers import make_llm
from pooling_models import (
    assert_near,
    hidden_states,
    logits,
    make_model,
    make_prompts,
    normalized,
    save,
)

from minivllm import LLM

PROMPTS = [[max(token, 3) for token in prompt] for prompt in make_prompts(12, 60)]
TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "together"}


@pytest.mark.bits
@pytest.mark.parametrize("family", ["Qwen2", "GPT2", "Bert", "Roberta"])
def test_embeddings_and_classes_are_those_of_transformers(tmp_path, family):
    model = make_model(family)
    llm = make_llm(save(model, tmp_path / "embedder"), task="embed", **TWO_RANKS)
    found = [output.outputs.embedding for output in llm.embed(PROMPTS, use_tqdm=False)]
    row = 0 if family in ("Bert", "Roberta") else -1
    assert_near(found, [normalized(hidden_states(model, p)[row]) for p in PROMPTS])
    model = make_model(family, "ForSequenceClassification", num_labels=3, pad_token_id=1)
    llm = make_llm(save(model, tmp_path / "classifier"), **TWO_RANKS)
    found = [output.outputs.probs for output in llm.classify(PROMPTS, use_tqdm=False)]
    assert_near(found, [logits(model, p).softmax(-1) for p in PROMPTS])


def test_a_classifier_is_made_of_rows_of_the_divided_head(tmp_path, tiny_chat):
    overrides = {
        "architectures": ["Qwen2ForSequenceClassification"],
        "classifier_from_token": ["a", "b"],
    }
    scores = []
    for ranks in ({}, TWO_RANKS):
        llm = LLM(str(tiny_chat), hf_overrides=overrides, num_gpu_blocks_override=40, **ranks)
        outputs = llm.classify(["abc", "Hello"], use_tqdm=False)
        scores.append([output.outputs.probs[0] for output in outputs])
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)
    assert scores[0][0] != scores[0][1]
