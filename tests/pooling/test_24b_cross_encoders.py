"""Notebook 24b: exercises, each computed once more in a way of its own; a head of two rows."""

import pytest
import torch

from minivllm import LLM
from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch24b

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_of_all_pairs_are_counted_one_by_one(seed):
    given = ch24b.pairs(seed).given
    queries = [given["query_len"]] * given["num_queries"]
    documents = [given["document_len"]] * given["num_documents"]
    prompts = [query + document for query in queries for document in documents]
    assert ch24b.pairs(seed).solve() == (len(queries + documents), len(prompts), sum(prompts))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_reads_only_what_the_vectors_chose(seed):
    exercise = ch24b.search(seed)
    for cosines, scores, k in exercise.calls:
        found = exercise.solve()(cosines, scores, k)
        others = set(range(len(cosines))) - set(found)
        assert min(cosines[i] for i in found) > max(cosines[i] for i in others)
        assert [scores[i] for i in found] == sorted((scores[i] for i in found), reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_document_more_would_take_a_step_more(seed):
    exercise = ch24b.rerank(seed)
    given = exercise.given
    k, tokens = exercise.solve()
    pair = given["query_len"] + given["document_len"]
    room = (given["max_steps"] - 1) * given["max_num_batched_tokens"]
    assert k * pair <= room < (k + 1) * pair
    with pytest.raises(NotYet, match="k: "):
        exercise.check((k + 1, tokens))


def test_the_difference_of_two_rows_is_the_softmax_of_two_logits():
    """Rows of the language model's own head, as notebook 24b takes them."""
    two = {"architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1,
           "classifier_from_token": ["I", "The"], "method": "from_2_way_softmax"}  # fmt: skip
    llm = LLM(dtype="float32", hf_overrides=two)
    model = llm.llm_engine.worker.model
    ids = llm.get_tokenizer().convert_tokens_to_ids(["I", "The"])
    whole = LLM(dtype="float32").llm_engine.worker.model
    rows = whole.compute_logits(torch.eye(whole.config.hidden_size)).T[ids]
    (score,) = (p for name, p in model.named_parameters() if name.endswith("score.weight"))
    torch.testing.assert_close(score, rows[1:] - rows[:1])
