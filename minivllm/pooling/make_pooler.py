"""make_pooler: the pooler that a pooling model's files describe, with an empty classifier."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from minivllm.models.model_config import ModelConfig
from minivllm.models.registry import get_model_class
from minivllm.pooling.heads import EncoderClassifier
from minivllm.pooling.pooler import Pooler, PoolerFromTokens
from minivllm.utils.validation import check

_METHODS = ("from_2_way_softmax", "no_post_processing")


def make_pooler(config: ModelConfig, directory: Path) -> Pooler | None:
    """Make the pooler of a pooling model; None for one that generates.

    Its classifier has the checkpoint's names, and is filled with its tensors: never at random.

    Args:
        config: after ``resolve_pooling``.
        directory: the model's, whose tokenizer knows the tokens of ``classifier_from_token``.

    Raises:
        ValueError: if the files contradict each other.
    """
    if config.runner_type != "pooling":
        return None
    if config.supported_tasks[-1] != "token_classify":
        return Pooler(config)
    with torch.device("meta"):  # the loader gives it memory, and fills it
        score = _classifier(config)
    tokens = getattr(config.hf_config, "classifier_from_token", None)
    if tokens is None:
        return Pooler(config, score)
    ids, difference = _token_ids(config, directory, tokens)
    model = get_model_class(config.architecture)
    embedding = model.checkpoint_name("model.embed_tokens.weight")
    plain = embedding.removeprefix(f"{model.base_model_prefix}.")
    return PoolerFromTokens(
        config,
        score,
        token_ids=ids,
        difference=difference,
        head_names=("lm_head.weight", embedding, plain),
    )


def _classifier(config: ModelConfig) -> nn.Module:
    width = config.hidden_size
    num_labels = config.num_labels
    if config.is_encoder_only:
        return EncoderClassifier(width, num_labels)
    if config.supported_tasks == ("token_classify",):  # a reward model
        return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_labels))
    return nn.Linear(width, num_labels, bias=False)


def _token_ids(config: ModelConfig, directory: Path, tokens: list[str]) -> tuple[list[int], bool]:
    from transformers import AutoTokenizer

    ok = isinstance(tokens, list) and len(tokens) > 0 and all(isinstance(t, str) for t in tokens)
    check(ok, "classifier_from_token", tokens, "a list of tokens")
    method = config.classifier_method
    check(method in _METHODS, "method", method, f"one of {', '.join(_METHODS)}")
    difference = method == _METHODS[0]
    ok = len(tokens) == 2 or not difference
    check(ok, "classifier_from_token", tokens, f"two tokens for {method}: no, and yes")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ValueError(f"classifier_from_token needs {directory}'s tokenizer: {error}") from error
    ids = tokenizer.convert_tokens_to_ids(tokens)
    for token, token_id in zip(tokens, ids, strict=True):
        ok = token_id is not None and token_id != tokenizer.unk_token_id
        check(ok, "classifier_from_token", token, "tokens of the tokenizer")
    return ids, difference
