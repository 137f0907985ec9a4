"""The embedder and the classifier that ship: their files, and what they find in unseen words."""

import json
import random
import re

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from minivllm import LLM, embedded_classifier_path, embedded_embedder_path, embedded_model_path
from minivllm.embedded.data import sentence_cases
from minivllm.embedded.data.requests import KINDS, request_of_kind
from minivllm.embedded.data.sentence_cases import searches, unseen_requests
from minivllm.embedded.data.sentences import drawn_pairs
from minivllm.lab.training import embedder as training
from minivllm.lab.training.classifier import save_classifier, train_head
from minivllm.lab.training.export import load_network
from minivllm.lab.training.manifest import file_hashes, read_manifest
from minivllm.lab.training.tokenization import load_closing_tokenizer, load_tokenizer

SOURCE = embedded_model_path()
EMBEDDER, CLASSIFIER = embedded_embedder_path(), embedded_classifier_path()
TEXTS = ["How old is John Doe?", "hi", "Jane works as a baker. " * 8, "Was heißt Käse?", "1 2 3"]


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def embedder():
    return LLM(EMBEDDER, max_model_len=512, num_gpu_blocks_override=600)


def vectors(llm, texts):
    return torch.tensor([o.outputs.embedding for o in llm.embed(texts, use_tqdm=False)])


@pytest.mark.parametrize("directory", [EMBEDDER, CLASSIFIER], ids=["embedder", "classifier"])
def test_the_manifest_fits_the_files(directory):
    assert read_manifest(directory)["files"] == file_hashes(directory)


def test_the_embedder_is_small_and_its_training_short():
    assert size(EMBEDDER) <= 8_500_000
    assert read_manifest(EMBEDDER)["training"]["CPU seconds"] <= 2 * 600  # two cores, ten minutes


def test_a_paraphrase_and_an_answer_are_found(embedder):
    scores = read_manifest(EMBEDDER)["scores"]
    for kind, cases in searches().items():
        assert scores["embedder"][kind] >= 0.95
        assert training.found(lambda texts: vectors(embedder, texts), cases[::5]) >= 0.9


def test_counting_words_finds_more_than_an_untuned_model():
    scores, plain = read_manifest(EMBEDDER)["scores"], load_tokenizer(SOURCE)
    counted = {
        kind: training.found(training.bag_of_words(plain), cases)
        for kind, cases in searches().items()
    }
    assert scores["counted tokens"] == pytest.approx(counted, abs=1e-4)
    for name in ("text model, last state", "text model, mean state"):
        assert all(scores[name][kind] < counted[kind] for kind in counted)


def test_the_first_numbers_are_a_vector_too(embedder):
    cases = searches()["retrieval"][::5]
    for length in training.DIMENSIONS:
        assert training.found(lambda t, n=length: vectors(embedder, t)[:, :n], cases) >= 0.8


def test_vllms_example_of_a_score_comes_out(embedder):
    asked, *told = vectors(embedder, [
        "What is the capital of France?", "The capital of Brazil is Brasilia.",
        "The capital of France is Paris.",
    ])  # fmt: skip
    other, right = (float(asked @ vector) for vector in told)
    assert right > other + 0.2


def test_sentence_transformers_gives_the_same_vectors(embedder):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(EMBEDDER), device="cpu").encode(TEXTS)
    torch.testing.assert_close(vectors(embedder, TEXTS), torch.tensor(theirs), atol=1e-5, rtol=0)


def test_our_training_network_gives_the_same_vectors(embedder):
    network = load_network(SOURCE).model
    network.load_state_dict(load_file(EMBEDDER / "model.safetensors"))
    states = training.last_state(network, load_closing_tokenizer(SOURCE))(TEXTS)
    torch.testing.assert_close(
        vectors(embedder, TEXTS), F.normalize(states, dim=-1), atol=1e-5, rtol=0
    )


def test_the_classifier_is_a_head_on_the_model_that_ships():
    index = json.loads((CLASSIFIER / "model.safetensors.index.json").read_text())["weight_map"]
    own = index.pop("score.weight")
    assert (CLASSIFIER / own).stat().st_size <= 8_000
    weights = {(CLASSIFIER / name).resolve() for name in index.values()}
    assert weights == {SOURCE / "model.safetensors"}
    assert size(CLASSIFIER) <= 260_000


def test_the_kind_of_a_request_is_found():
    llm = LLM(CLASSIFIER, max_model_len=512, num_gpu_blocks_override=600)
    assert read_manifest(CLASSIFIER)["scores"]["unseen wordings"] >= 0.85
    texts, kinds = zip(*unseen_requests(KINDS)[::2], strict=True)
    outputs = [o.outputs.probs for o in llm.classify(list(texts), use_tqdm=False)]
    named = [KINDS[max(range(len(probs)), key=probs.__getitem__)] for probs in outputs]
    assert sum(map(str.__eq__, named, kinds)) >= 0.85 * len(kinds)


def test_training_holds_no_wording_that_is_held_out():
    unseen = sentence_cases._UNSEEN
    templates = [
        template
        for part in (unseen.questions, unseen.statements, unseen.requests)
        for of_one in part.values()
        for template in of_one
    ]
    forms = [re.sub(r"\\{\w\\}", ".+", re.escape(template)) for template in templates]
    wording, rng = re.compile("|".join(forms), re.IGNORECASE), random.Random(0)
    drawn = [text for pair in drawn_pairs(rng, 500) for text in (pair.first, pair.second)]
    drawn += [request_of_kind(rng, kind) for kind in KINDS for _ in range(200)]
    assert not [text for text in drawn if wording.fullmatch(text)]
    assert wording.fullmatch(searches(1)["paraphrase"][0].text)


def test_training_learns_and_gives_the_same_again(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "GROUPS", 8)
    monkeypatch.setattr(training, "WARM_UP", 1)
    pairs, tokenizer = drawn_pairs(random.Random("unseen"), 8), load_closing_tokenizer(SOURCE)
    for number in range(2):
        network = load_network(SOURCE).model
        before = training.pairs_loss(network, tokenizer, pairs).item()
        training.tune(network, tokenizer, steps=8)
        after = training.pairs_loss(network, tokenizer, pairs).item()
        training.save_embedder(network, tokenizer, tmp_path / str(number))
    assert after < 0.8 * before
    assert file_hashes(tmp_path / "0") == file_hashes(tmp_path / "1")


def test_a_head_learns_and_is_written_without_the_models_weights(tmp_path):
    states = torch.eye(len(KINDS), 256)
    head = train_head(states, torch.arange(len(KINDS)), steps=60)
    assert head(states).argmax(-1).tolist() == list(range(len(KINDS)))
    save_classifier(head, tmp_path / "classifier")
    assert size(tmp_path) <= 260_000
