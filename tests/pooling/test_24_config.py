"""Runner and tasks of a model: by its files, by both generations of words; what is refused."""

import json
from itertools import product

import pytest
import torch
from helpers import make_llm
from pooling_models import (
    FAMILIES,
    FILE,
    hidden_states,
    make_model,
    reward_model,
    save,
    sentence_transformer,
)
from safetensors.torch import load_file, save_file
from torch import nn

from minivllm import EngineArgs, PoolingParams
from minivllm.config.pooler import PoolerConfig

EMBED, CLASSIFY = ("embed", "token_embed"), ("classify", "token_classify")
KINDS = ("ForCausalLM", "Model", "ForSequenceClassification")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A directory of each kind of Llama; "ranks" has one label, "st" has a modules.json."""
    found = {}
    for kind in KINDS:
        found[kind] = save(make_model("Llama", kind), tmp_path_factory.mktemp(kind))
    ranker = make_model("Llama", KINDS[2], num_labels=1)
    found["ranks"] = save(ranker, tmp_path_factory.mktemp("ranks"))
    found["st"] = save(make_model("Llama", "ForCausalLM"), tmp_path_factory.mktemp("st"))
    sentence_transformer(found["st"], "lasttoken")
    found["reward"] = tmp_path_factory.mktemp("reward")
    reward_model(found["reward"], "Qwen2ForRewardModel", 1)
    return found


def model_config(directory, **words):
    args = EngineArgs(model=str(directory), skip_tokenizer_init=True, **words)
    return args.create_engine_config().model_config


@pytest.mark.parametrize(
    ("kind", "words", "tasks"),
    [
        ("ForCausalLM", {}, ()),
        ("ForCausalLM", {"task": "generate"}, ()),
        ("ForCausalLM", {"runner": "generate"}, ()),
        ("ForCausalLM", {"task": "embed"}, EMBED),
        ("ForCausalLM", {"task": "embedding"}, EMBED),
        ("ForCausalLM", {"runner": "pooling"}, EMBED),
        ("ForCausalLM", {"convert": "embed"}, EMBED),
        ("ForCausalLM", {"task": "embed", "runner": "pooling", "convert": "embed"}, EMBED),
        ("ForCausalLM", {"pooler_config": {"pooling_type": "MEAN"}}, EMBED),
        ("ForCausalLM", {"task": "score"}, EMBED),
        # one that sets nothing says nothing
        ("ForCausalLM", {"pooler_config": {}}, ()),
        ("ForCausalLM", {"pooler_config": {"pooling_type": None}}, ()),
        ("ForCausalLM", {"pooler_config": PoolerConfig()}, ()),
        ("ForCausalLM", {"override_pooler_config": {}}, ()),
        ("ForCausalLM", {"pooler_config": {}, "runner": "generate"}, ()),
        ("ForCausalLM", {"pooler_config": {}, "runner": "pooling"}, EMBED),
        ("ForSequenceClassification", {"pooler_config": {}}, CLASSIFY),
        ("ForCausalLM", {"convert": "classify"}, CLASSIFY),
        ("st", {}, EMBED),
        ("st", {"task": "generate"}, ()),
        ("Model", {}, EMBED),
        ("Model", {"convert": "none"}, EMBED),
        ("ForSequenceClassification", {}, CLASSIFY),
        ("ForSequenceClassification", {"task": "classify", "runner": "pooling"}, CLASSIFY),
        ("ForSequenceClassification", {"task": "embed"}, EMBED),
        ("ForSequenceClassification", {"task": "score"}, EMBED),
        ("ranks", {"task": "score"}, CLASSIFY),
        ("reward", {}, ("token_classify",)),
        ("reward", {"task": "reward"}, ("token_classify",)),
    ],
)
def test_words_and_files_decide_what_a_model_does(directories, kind, words, tasks):
    config = model_config(directories[kind], **words)
    assert config.runner_type == ("pooling" if tasks else "generate")
    assert config.supported_tasks == tasks
    if tasks:
        assert config.pooler_config.task == tasks[0]


def test_a_reward_is_of_tokens_and_raw(directories):
    for kind, tasks in (("ForCausalLM", EMBED), ("ranks", CLASSIFY)):
        config = model_config(directories[kind], task="reward")
        assert config.pooler_config.task == tasks[1]
        assert config.pooler_config.use_activation is False
    chosen = model_config(directories["ranks"], task="reward", pooler_config={"task": "classify"})
    assert chosen.pooler_config.task == "classify"


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("ForCausalLM", {"task": "summarize"}, "task must be one of auto, .*, got 'summarize'"),
        ("ForCausalLM", {"runner": "draft"}, "runner must be one of auto, generate, pooling"),
        ("ForCausalLM", {"convert": 3}, "convert must be one of auto, none, embed, classify"),
        ("ForCausalLM", {"task": "embed", "runner": "generate"},
         "task='embed' contradicts runner='generate'"),
        ("ForCausalLM", {"task": "generate", "convert": "embed"},
         "task='generate' contradicts convert='embed'"),
        ("ForCausalLM", {"task": "score", "convert": "classify"},
         "task='score' contradicts convert='classify'"),
        ("ForCausalLM", {"runner": "generate", "convert": "embed"},
         "runner='generate' contradicts convert='embed'"),
        ("ForCausalLM", {"task": "generate", "pooler_config": {"dimensions": 8}},
         "task='generate' contradicts a pooler_config"),
        ("ForCausalLM", {"runner": "pooling", "convert": "none"},
         "convert must be 'embed' or 'classify' for a pooling LlamaForCausalLM"),
        ("Model", {"task": "generate"}, "LlamaModel has no head for tokens: it cannot generate"),
        ("ForSequenceClassification", {"runner": "generate"}, "has no head for tokens"),
        ("reward", {"task": "embed"}, "task must be 'auto' or 'reward' for Qwen2ForRewardModel"),
        ("reward", {"convert": "classify"}, "convert must be 'auto' or 'reward' for Qwen2ForRew"),
        ("Model", {"pooler_config": {"task": "classify"}},
         "pooler_config.task='classify' is not a task of this model: 'embed', 'token_embed'"),
        ("Model", {"pooler_config": {"task": "score"}}, "task='score' is no task of pooling any"),
        ("Model", {"pooler_config": {"normalize": True}}, "use use_activation instead"),
        ("Model", {"pooler_config": {"softmax": True}}, "pooler_config has no argument 'softmax'"),
        ("Model", {"pooler_config": {"pooling_type": "MAX"}}, "pooling_type must be one of CLS"),
        ("Model", {"pooler_config": {"pooling_type": "LAST", "seq_pooling_type": "CLS"}},
         "seq_pooling_type must be None beside pooling_type='LAST'"),
        ("Model", {"pooler_config": {"logit_sigma": 0}}, "logit_sigma must be not 0"),
        ("Model", {"pooler_config": {"dimensions": 8}}, "does not support Matryoshka"),
        ("Model", {"pooler_config": {"step_tag_id": 3}, "override_pooler_config": {}},
         "override_pooler_config must be None beside pooler_config"),
        ("Model", {"pooler_config": 3}, "pooler_config must be a PoolerConfig"),
        ("Model", {"hf_overrides": [1]}, "hf_overrides must be a dict"),
        ("Model", {"hf_overrides": {"architectures": "LlamaModel"}},
         r"hf_overrides\['architectures'\] must be a list"),
        ("Model", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
         "speculative_config must be None for a pooling model"),
        ("Model", {"guided_decoding_backend": "fsm"},
         "structured_outputs_config must be None for a pooling model"),
        ("ranks", {"hf_overrides": {"sbert_ce_default_activation_function": "its_code.Run"}},
         "activation_fn='its_code.Run' in config.json is not a function of torch.nn.modules"),
        ("ranks", {"hf_overrides": {"sentence_transformers": {
            "activation_fn": "torch.nn.modules.linear.Linear"}}}, "is not a function of torch"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_cannot_be(directories, kind, words, message):
    with pytest.raises(ValueError, match=message):
        make_llm(directories[kind], **words)


@pytest.mark.parametrize("kind", ["MEAN", "CLS", "STEP"])
def test_where_a_prompt_must_come_whole_there_are_no_chunks_and_no_hits(directories, kind):
    words = {"pooler_config": {"pooling_type": kind}}
    args = EngineArgs(model=str(directories["Model"]), skip_tokenizer_init=True, **words)
    config = args.create_engine_config()
    assert not config.scheduler_config.enable_chunked_prefill
    assert not config.cache_config.enable_prefix_caching
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        message = f"{name} must be False or None, since pooling type {kind} needs each prompt whole"
        with pytest.raises(ValueError, match=message):
            model_config(directories["Model"], **words, **{name: True})
        model_config(directories["Model"], **words, **{name: False})
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least max_model_len"):
        model_config(directories["Model"], **words, max_num_batched_tokens=255)


def test_other_poolers_take_chunks_and_hits_unless_the_user_does_not(directories):
    for kind, on in product(("Model", "ranks", "reward"), (None, True, False)):
        args = EngineArgs(
            model=str(directories[kind]), enable_chunked_prefill=on, enable_prefix_caching=on,
            skip_tokenizer_init=True,
        )  # fmt: skip
        config = args.create_engine_config()
        assert config.scheduler_config.enable_chunked_prefill is (on is not False)
        assert config.cache_config.enable_prefix_caching is (on is not False)


def test_no_code_of_a_model_is_run_and_one_line_says_so(directories, caplog, monkeypatch):
    """An architecture that only such code has is refused, with those that are built in."""
    from minivllm.engine import arg_utils

    monkeypatch.setattr(arg_utils.logger, "propagate", True)
    with caplog.at_level("INFO", logger=arg_utils.logger.name):
        assert model_config(directories["reward"], trust_remote_code=True).num_labels == 1
    (line,) = [line for line in caplog.messages if "trust_remote_code" in line]
    assert "Qwen2ForRewardModel is built in; a model's own code is never run" in line
    overrides = {"architectures": ["TheirOwnModel"]}
    message = "architecture 'TheirOwnModel' is not supported; minivllm runs LlamaForCausalLM, .*"
    with pytest.raises(ValueError, match=message):
        model_config(directories["reward"], trust_remote_code=True, hf_overrides=overrides)


# -- checkpoints and their files ------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_without_its_head_is_refused_never_filled_with_random_numbers(
    tmp_path, family
):
    model = make_model(family, "ForSequenceClassification")
    tensors = load_file(save(model, tmp_path) / FILE)
    score = tensors.pop("score.weight")
    for kept, message in (
        ({}, "lacks 1 tensors, the first is 'score.weight'"),
        ({"score.weight": score[:1]}, r"'score.weight' has shape \(1, 32\)"),
    ):
        save_file(tensors | kept, tmp_path / FILE)
        with pytest.raises(ValueError, match=message):
            make_llm(tmp_path)


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_may_have_their_prefix_and_other_heads(tmp_path, family, prefixed):
    """Saved with a head or without: tensors of heads that are not built are left out."""
    model = make_model(family)
    tensors = load_file(save(model, tmp_path) / FILE)
    prefix = {"GPT2": "transformer."}.get(family, "model.") if prefixed else ""
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    heads = {"lm_head.weight": torch.ones(97, 32), "score.weight": torch.ones(2, 32)}
    save_file(tensors | heads, tmp_path / FILE)
    llm = make_llm(tmp_path)
    (output,) = llm.encode([5, 6, 7], PoolingParams(use_activation=False), use_tqdm=False)
    torch.testing.assert_close(output.outputs.data, hidden_states(model, [5, 6, 7])[-1])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{", "modules.json cannot be read"),
        ("modules.json", "{}", "modules.json cannot be read: it must be a JSON array"),
        ("modules.json", "[" * 100_000, "modules.json cannot be read"),
        ("modules.json", "[3]", "each module must have a type and a path"),
        ("modules.json", '[{"type": "their.WeightedLayerPooling", "path": "1"}]',
         "module 'WeightedLayerPooling' is not supported; Transformer, Pooling, Dense and Normal"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}',
         "pooling mode 'pooling_mode_max_tokens' is not supported; one of cls, mean and lasttoken"),
        ("1_Pooling/config.json", None, "1_Pooling/config.json cannot be read"),
        ("2_Dense/config.json", '{"in_features": 32, "out_features": true}', "must be sizes"),
        ("2_Dense/config.json", '{"in_features": 31, "out_features": 8}',
         "in_features is 31, but the rows that come to it have 32 numbers"),
        ("2_Dense/config.json", '{"in_features": 32, "out_features": 9}',
         r"linear.weight has shape \(8, 32\), not \(9, 32\)"),
        ("2_Dense/config.json",
         '{"in_features": 32, "out_features": 8, "activation_function": "their.Own"}',
         "activation_function 'Own' is not one of Identity, Tanh"),
        ("2_Dense/model.safetensors", "x", "model.safetensors is broken or truncated"),
    ],
)  # fmt: skip
def test_broken_files_of_sentence_transformers_are_named(tmp_path, file, content, message):
    sentence_transformer(save(make_model("Llama"), tmp_path), "lasttoken", [nn.Linear(32, 8)])
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        make_llm(tmp_path)


@pytest.mark.parametrize(
    "order",
    [
        ["Transformer", "Normalize", "Dense", "Pooling"],
        ["Transformer", "Pooling", "Normalize", "Dense"],
        ["Transformer", "Dense", "Pooling"],
        ["Transformer", "Normalize", "Pooling"],
        ["Pooling", "Transformer"],
        ["Transformer", "Pooling", "Pooling"],
        ["Transformer", "Dense"],
        ["Transformer"],
        ["Pooling", "Normalize"],
        ["Transformer", "Transformer", "Pooling"],
        ["Transformer", "Pooling", "Dense", "Normalize", "Dense"],
        [],
    ],
)
def test_modules_in_another_order_than_ours_are_refused(tmp_path, order):
    """Each is done where the file has it: a norm before a dense layer gives other vectors."""
    sentence_transformer(save(make_model("Llama"), tmp_path), "lasttoken", [nn.Linear(32, 8)])
    file = tmp_path / "modules.json"
    modules = {module["type"].rpartition(".")[2]: module for module in json.loads(file.read_text())}
    file.write_text(json.dumps([modules[kind] for kind in order]))
    message = "modules.json must list Transformer, Pooling, then Dense layers, then Normalize, got"
    with pytest.raises(ValueError, match=f"{message} {', '.join(order) or 'nothing'}"):
        make_llm(tmp_path)


def test_the_newer_form_of_the_pooling_file_is_read_too(tmp_path):
    sentence_transformer(save(make_model("Llama"), tmp_path), "lasttoken")
    for mode, kind in (("lasttoken", "LAST"), ("mean", "MEAN"), ("cls", "CLS")):
        config = {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
        (tmp_path / "1_Pooling/config.json").write_text(json.dumps(config))
        assert model_config(tmp_path).pooler_config.seq_pooling_type == kind
    user = {"pooling_type": "LAST", "use_activation": False}
    settings = model_config(tmp_path, pooler_config=PoolerConfig(**user)).pooler_config
    assert (settings.seq_pooling_type, settings.use_activation) == ("LAST", False)


# -- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("Model", {"task": "classify"}, "'classify' is not one of this model's; it has 'embed'"),
        ("Model", {"dimensions": 8}, "does not support Matryoshka embeddings"),
        ("Model", {"step_tag_id": 3}, "step_tag_id needs a model whose pooling type is 'STEP'"),
        ("ranks", {"task": "token_embed"}, "it has 'classify', 'token_classify'"),
        ("ranks", {"dimensions": 8}, "takes no dimensions: classes are not cut"),
        ("reward", {"task": "embed"}, "it has 'token_classify'"),
        *(
            (kind, {"task": task, "skip_reading_prefix_cache": False},
             "skip_reading_prefix_cache must be True or None for task='token_")
            for kind, task in (("Model", "token_embed"), ("ranks", "token_classify"),
                               ("reward", None))
        ),
    ],
)  # fmt: skip
def test_a_request_for_what_the_model_has_not_is_refused(directories, kind, params, message):
    llm = make_llm(directories[kind])
    with pytest.raises(ValueError, match=message):
        llm.encode([1, 2], PoolingParams(**params), use_tqdm=False)
    assert len(llm.encode([1, 2], use_tqdm=False)) == 1


def test_columns_that_a_model_has_not_are_refused_before_the_step(directories):
    llm = make_llm(directories["reward"], pooler_config={"pooling_type": "STEP"})
    message = "returned_token_ids must be below 1, got 1"
    with pytest.raises(ValueError, match=message):
        llm.encode([1, 2], PoolingParams(returned_token_ids=[0, 1]), use_tqdm=False)
    (output,) = llm.encode([1, 2], PoolingParams(returned_token_ids=[0]), use_tqdm=False)
    assert output.outputs.data.shape == (2, 1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"normalize": True}, "PoolingParams has no argument 'normalize'"),
        ({"dimensions": 0}, "dimensions must be an integer of at least 1"),
        ({"use_activation": 1}, "use_activation must be True, False or None"),
        ({"task": "encode"}, "task='encode' is no task of pooling any more"),
        ({"task": ["embed"]}, "task must be one of embed"),
        ({"returned_token_ids": [-1]}, "returned_token_ids must be a list of token ids"),
        ({"step_tag_id": "x"}, "step_tag_id must be a token id"),
        ({"extra_kwargs": 3}, "extra_kwargs must be a dict"),
    ],
)
def test_parameters_that_no_model_could_take_are_refused_at_once(params, message):
    with pytest.raises(ValueError, match=message):
        PoolingParams(**params)
