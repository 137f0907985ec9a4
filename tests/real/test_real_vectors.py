"""MiniLM's vectors are those that Sentence Transformers made, of texts of 1 to 256 tokens."""

import numpy as np
import pytest
from record import VECTORS, vector_texts

from minivllm import LLM


def cosines(first, second):
    """Cosine of each pair of rows."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / norms


@pytest.fixture(scope="module")
def llm(minilm):
    return LLM(str(minilm))


def test_vectors_of_sentence_transformers(llm):
    texts, theirs = vector_texts(), np.load(VECTORS).astype(np.float64)
    outputs = llm.embed(texts, use_tqdm=False)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    assert (min(lengths), max(lengths)) == (3, 256)  # with a special token at each end
    ours = np.array([output.outputs.embedding for output in outputs])
    assert (1 - cosines(ours, theirs)).max() < 1e-5
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_text_alone_is_as_in_a_batch(llm):
    texts, theirs = vector_texts()[::6], np.load(VECTORS)[::6]
    ours = np.array([llm.embed(text, use_tqdm=False)[0].outputs.embedding for text in texts])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_published_similarities(llm):
    """The example with which Sentence Transformers presents itself."""
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])
    published = [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]]
    np.testing.assert_allclose(vectors @ vectors.T, published, atol=1e-4)
