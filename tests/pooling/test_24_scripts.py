"""The scripts of vLLM's documentation for pooling models, as typed but for the model's name."""

import pytest
import transformers
from pooling_models import make_model, reward_model, save

from minivllm import LLM


@pytest.fixture(scope="module")
def models(tiny_chat, tmp_path_factory):
    """Random models with a tokenizer, by the task that a script asks for."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    size, found = len(tokenizer), {}
    for task, family, kind, changes in (
        ("embed", "Mistral", "Model", {}),
        ("generate", "Qwen2", "ForCausalLM", {}),
        ("classify", "Qwen2", "ForSequenceClassification", {"num_labels": 2}),
        ("score", "Qwen2", "ForSequenceClassification", {"num_labels": 1}),
    ):
        model = make_model(family, kind, vocab_size=size, **changes)
        found[task] = str(save(model, tmp_path_factory.mktemp(task)))
    directory = tmp_path_factory.mktemp("reward")
    reward_model(directory, "Qwen2ForRewardModel", 1, vocab_size=size)
    found["reward"] = str(directory)
    for directory in found.values():
        tokenizer.save_pretrained(directory)
    return found


@pytest.mark.parametrize("more", [{}, {"trust_remote_code": True}])
def test_loading_a_model(models, more, capsys):
    llm = LLM(model=models["generate"], task="embed", **more)
    output = llm.encode("Hello, my name is")
    print(output)
    assert "[PoolingRequestOutput(request_id='0'" in capsys.readouterr().out


def test_reward(models):
    llm = LLM(model=models["reward"], task="reward")
    (output,) = llm.encode("Hello, my name is")
    data = output.outputs.data
    assert f"Data: {data!r}".startswith("Data: tensor([[")
    assert data.shape == (len(output.prompt_token_ids), 1)


def test_embed(models):
    llm = LLM(model=models["embed"], task="embed")
    (output,) = llm.embed("Hello, my name is")
    embeds = output.outputs.embedding
    assert f"Embeddings: {embeds!r} (size={len(embeds)})".endswith("] (size=32)")
    assert sum(number**2 for number in embeds) == pytest.approx(1)


def test_classify(models):
    llm = LLM(model=models["classify"], task="classify")
    (output,) = llm.classify("Hello, my name is")
    probs = output.outputs.probs
    assert f"Class Probabilities: {probs!r} (size={len(probs)})".endswith("] (size=2)")
    assert sum(probs) == pytest.approx(1)


def test_score(models):
    llm = LLM(model=models["score"], task="score")
    (output,) = llm.score("What is the capital of France?", "The capital of Brazil is Brasilia.")
    score = output.outputs.score
    assert 0 < score < 1
    assert f"Score: {score}" == f"Score: {float(score)}"


def test_a_reranker_is_loaded_as_in_vllm(models):
    """Its head is the difference of two rows of a model that generates."""
    llm = LLM(
        model=models["generate"], runner="pooling",
        hf_overrides={
            "architectures": ["Qwen2ForSequenceClassification"],
            "classifier_from_token": ["n", "y"],
            "method": "from_2_way_softmax",
        },
    )  # fmt: skip
    outputs = llm.score("a query", ["a document", "another"])
    assert [0 < output.outputs.score < 1 for output in outputs] == [True, True]
