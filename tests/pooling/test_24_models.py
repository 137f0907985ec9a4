"""Every decoder as a pooling model, against transformers in float32."""

import pytest
import torch
import transformers
from helpers import make_llm
from pooling_models import (
    FAMILIES,
    assert_near,
    hidden_states,
    logits,
    make_model,
    make_prompts,
    normalized,
    reward_model,
    save,
    sentence_transformer,
)
from torch import nn

from minivllm import LLM, PoolingParams

PROMPTS = make_prompts()
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
STEP_TAG = 5


def data_of(llm, prompts=PROMPTS, **kwargs):
    outputs = llm.encode(prompts, use_tqdm=False, **kwargs)
    assert [output.prompt_token_ids for output in outputs] == prompts
    return [output.outputs.data for output in outputs]


@pytest.mark.bits
@pytest.mark.parametrize("kind", ["Model", "ForCausalLM"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_embeds(tmp_path, family, kind):
    """By its architecture's name alone, or where that says that it generates, when asked to."""
    model = make_model(family, kind)
    asked = {} if kind == "Model" else {"task": "embed"}
    llm = make_llm(save(model, tmp_path), max_num_batched_tokens=500, **asked)
    states = [hidden_states(model, prompt) for prompt in PROMPTS]
    outputs = llm.embed(PROMPTS, use_tqdm=False)
    found = [torch.tensor(output.outputs.embedding) for output in outputs]
    assert_near(found, [normalized(rows[-1]) for rows in states])
    raw = data_of(llm, pooling_params=PoolingParams(use_activation=False))
    assert_near(raw, [rows[-1] for rows in states])
    of_tokens = PoolingParams(task="token_embed", use_activation=False)
    assert_near(data_of(llm, pooling_params=of_tokens), states)


@pytest.mark.bits
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_classifies(tmp_path, family):
    model = make_model(family, "ForSequenceClassification", num_labels=3)
    llm = make_llm(save(model, tmp_path), max_num_batched_tokens=500)
    wanted = [logits(model, prompt) for prompt in PROMPTS]
    outputs = llm.classify(PROMPTS, use_tqdm=False)
    found = [torch.tensor(output.outputs.probs) for output in outputs]
    assert_near(found, [numbers.softmax(-1) for numbers in wanted])
    raw = data_of(llm, pooling_params=PoolingParams(use_activation=False))
    assert_near(raw, wanted)
    (tokens,) = data_of(llm, PROMPTS[:1], pooling_task="token_classify")
    every = hidden_states(model, PROMPTS[0]) @ model.score.weight.T
    assert_near([tokens], [every.detach().softmax(-1)])


# -- other heads --------------------------------------------------------------------------------


@pytest.mark.bits
def test_a_reward_model_scores_every_token(tmp_path):
    scores = reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    llm = make_llm(tmp_path, task="reward", trust_remote_code=True, max_num_batched_tokens=60)
    assert_near(data_of(llm), [scores(prompt) for prompt in PROMPTS])


@pytest.mark.bits
def test_a_process_reward_model_scores_the_steps(tmp_path):
    scores = reward_model(tmp_path, "Qwen2ForProcessRewardModel", 2)
    prompts = [[*prompt[:3], STEP_TAG, *prompt[3:40], STEP_TAG] for prompt in PROMPTS]
    steps = [[i for i, token in enumerate(prompt) if token == STEP_TAG] for prompt in prompts]
    llm = make_llm(tmp_path, pooler_config={"step_tag_id": STEP_TAG})
    wanted = [scores(p).softmax(-1)[rows] for p, rows in zip(prompts, steps, strict=True)]
    assert_near(data_of(llm, prompts), wanted)
    good = PoolingParams(returned_token_ids=[1], use_activation=False)
    wanted = [scores(p)[rows][:, [1]] for p, rows in zip(prompts, steps, strict=True)]
    assert_near(data_of(llm, prompts, pooling_params=good), wanted)


@pytest.mark.bits
def test_a_model_without_a_reward_head_gives_the_states_of_all_tokens(tmp_path):
    model = make_model("Llama", "ForCausalLM")
    llm = make_llm(save(model, tmp_path), task="reward", max_num_batched_tokens=60)
    assert_near(data_of(llm), [hidden_states(model, prompt) for prompt in PROMPTS])


ARGUMENTS = {
    "from_2_way_softmax": {"classifier_from_token": ["n", "y"], "method": "from_2_way_softmax"},
    "qwen3_reranker": {"classifier_from_token": ["n", "y"], "is_original_qwen3_reranker": True},
    "no_post_processing": {"classifier_from_token": ["a", "n", "y"],
                           "method": "no_post_processing"},
}  # fmt: skip


@pytest.mark.bits
@pytest.mark.parametrize(
    ("family", "how", "tied"),
    [
        *(("Qwen3", how, tied) for how in ARGUMENTS for tied in (True, False)),
        *((family, "from_2_way_softmax", True) for family in ("GPT2", "OPT")),
        *((family, "from_2_way_softmax", "it says") for family in ("Qwen3", "GPT2")),
    ],
)
def test_a_classifier_is_made_of_rows_of_the_head(tmp_path, tiny_chat, family, how, tied):
    """No weight is new: two tokens' logits, or their difference, are a reranker's."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    size = len(tokenizer)
    model = make_model(family, "ForCausalLM", vocab_size=size, tie_word_embeddings=tied is True)
    tokenizer.save_pretrained(save(model, tmp_path, tie_word_embeddings=tied is not False))
    overrides = {"architectures": [f"{family}ForSequenceClassification"], **ARGUMENTS[how]}
    llm = LLM(str(tmp_path), hf_overrides=overrides, num_gpu_blocks_override=200, task="auto")
    ids = tokenizer.convert_tokens_to_ids(ARGUMENTS[how]["classifier_from_token"])
    wanted = [logits(model, prompt)[-1][ids].softmax(-1) for prompt in PROMPTS]
    if how != "no_post_processing":
        wanted = [numbers[1:] for numbers in wanted]  # "yes"
    assert_near([torch.tensor(o.outputs.probs) for o in llm.classify(PROMPTS, False)], wanted)


@pytest.mark.bits
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", ["Qwen2", "GPT2"])
def test_a_directory_of_sentence_transformers(tmp_path, family, layers):
    """Its dense layers come behind the pooling, and its norm last; it pools by itself."""
    model = make_model(family, "ForCausalLM")
    dense = [nn.Linear(32, 24), nn.Linear(24, 20, bias=False)][:layers]
    sentence_transformer(save(model, tmp_path), "lasttoken", dense)
    llm = make_llm(tmp_path)
    wanted = [hidden_states(model, prompt)[-1] for prompt in PROMPTS]
    for layer in dense:
        wanted = [torch.tanh(layer(vector)).detach() for vector in wanted]
    found = [torch.tensor(o.outputs.embedding) for o in llm.embed(PROMPTS, use_tqdm=False)]
    assert_near(found, [normalized(vector) for vector in wanted])
    assert llm.llm_engine.model_config.embedding_size == len(wanted[0])


@pytest.mark.bits
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens"])
def test_other_rows_are_kept_where_the_files_say_so_or_the_user(tmp_path, mode):
    """MEAN and CLS need a prompt whole: no chunks, and nothing from the prefix cache."""
    model = make_model("Llama")
    sentence_transformer(save(model, tmp_path), mode, norm=False)
    states = [hidden_states(model, prompt) for prompt in PROMPTS]
    wanted = {"cls_token": [rows[0] for rows in states], "mean_tokens": [r.mean(0) for r in states]}
    llm = make_llm(tmp_path)
    assert_near(data_of(llm), wanted[mode])
    scheduler = llm.llm_engine.scheduler
    assert not scheduler.config.enable_chunked_prefill
    other = "mean_tokens" if mode == "cls_token" else "cls_token"
    kind = {"cls_token": "CLS", "mean_tokens": "MEAN"}[other]
    llm = make_llm(tmp_path, pooler_config={"pooling_type": kind, "use_activation": True})
    assert_near(data_of(llm), [normalized(vector) for vector in wanted[other]])
    assert not any(output.num_cached_tokens for output in llm.encode(PROMPTS, use_tqdm=False))


@pytest.mark.parametrize("value", ["8", 8, {"8": 1}, [8, "16"], [0], [-8], [8.5], [True], False])
def test_matryoshka_dimensions_that_are_none_are_refused_at_start(tmp_path, value):
    save(make_model("Llama"), tmp_path, matryoshka_dimensions=value, is_matryoshka=True)
    with pytest.raises(ValueError, match=r"matryoshka_dimensions in config\.json must be a list"):
        make_llm(tmp_path, task="embed")


@pytest.mark.bits
def test_matryoshka_embeddings_are_cut_and_then_normalized(tmp_path):
    model = make_model("Qwen3")
    llm = make_llm(save(model, tmp_path, matryoshka_dimensions=[8, 16]))
    wanted = [hidden_states(model, prompt)[-1] for prompt in PROMPTS]
    cut = data_of(llm, pooling_params=PoolingParams(dimensions=8))
    assert_near(cut, [normalized(vector[:8]) for vector in wanted])
    mixed = [PoolingParams(dimensions=[None, 8, 16][i % 3]) for i in range(len(PROMPTS))]
    sizes = [32, 8, 16]
    wanted = [normalized(v[: sizes[i % 3]]) for i, v in enumerate(wanted)]
    assert_near(data_of(llm, pooling_params=mixed), wanted)
    for dimensions, message in ((9, "one of \\[8, 16\\]"), (33, "from 1 to 32")):
        with pytest.raises(ValueError, match=message):
            data_of(llm, pooling_params=PoolingParams(dimensions=dimensions))


@pytest.mark.bits
@pytest.mark.parametrize(
    ("labels", "fields", "activation"),
    [
        (1, {}, torch.sigmoid),
        (3, {"problem_type": "regression"}, lambda x: x),
        (3, {"problem_type": "multi_label_classification"}, torch.sigmoid),
        (3, {"problem_type": "single_label_classification"}, lambda x: x.softmax(-1)),
        (1, {"sentence_transformers": {"activation_fn": IDENTITY}}, lambda x: x),
        (
            2,
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"},
            torch.tanh,
        ),
    ],
)
def test_the_activation_is_the_one_of_the_config(tmp_path, labels, fields, activation):
    model = make_model("Llama", "ForSequenceClassification", num_labels=labels)
    settings = {"logit_mean": 0.25, "logit_sigma": 2.0}
    llm = make_llm(save(model, tmp_path, **fields), pooler_config=settings)
    wanted = [activation((logits(model, prompt) - 0.25) / 2.0) for prompt in PROMPTS]
    assert_near([torch.tensor(o.outputs.probs) for o in llm.classify(PROMPTS, False)], wanted)
