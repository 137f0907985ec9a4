"""Runner and tasks of a model: does it generate, or pool, and what can be asked of it?

Two generations of names say it. vLLM 0.6.6 had ``task=``; 0.32 has ``runner=`` (what the engine
does), ``convert=`` (what is put on a decoder for it) and ``pooler_config=``. (vLLM:
vllm/config/model.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minivllm.config.pooler import PoolerConfig
from minivllm.models.model_config import ModelConfig
from minivllm.models.registry import get_model_class
from minivllm.pooling.sentence_transformers import (
    read_model_max_length,
    read_modules,
    read_text_settings,
)
from minivllm.pooling_params import PoolingParams
from minivllm.utils.validation import check, is_int, is_one_of

# What each older word says in the newer ones
_IMPLIED: dict[str, dict[str, tuple[str, ...]]] = {
    "generate": {"runner": ("generate",), "convert": ("none",)},
    "embed": {"runner": ("pooling",), "convert": ("embed",)},
    "embedding": {"runner": ("pooling",), "convert": ("embed",)},
    "classify": {"runner": ("pooling",), "convert": ("classify",)},
    "score": {"runner": ("pooling",), "convert": ()},
    "reward": {"runner": ("pooling",), "convert": ()},
}
TASKS = ("auto", *_IMPLIED)
RUNNERS = ("auto", "generate", "pooling")
CONVERTS = ("auto", "none", "embed", "classify")
_EMBED = ("embed", "token_embed")
_CLASSIFY = ("classify", "token_classify")
_GENERATE_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_REWARD_SUFFIXES = ("ForRewardModel", "ForProcessRewardModel")
_CLASSIFIER_SUFFIX = "ForSequenceClassification"
_STEP_TAG_ID = 151651  # <extra_0> of Qwen2.5-Math-PRM
CHUNKABLE = ("LAST", "ALL")  # methods to which a prompt may come in chunks


@dataclass(frozen=True)
class PoolingRequest:
    """Words of a user for it: ``task`` is the older, the others are the newer."""

    task: str = "auto"
    runner: str = "auto"
    convert: str = "auto"
    pooler_config: PoolerConfig | None = None

    def check(self) -> None:
        """Raise ``ValueError`` for a name that is not known, or two that contradict each other."""
        for name, known in (("task", TASKS), ("runner", RUNNERS), ("convert", CONVERTS)):
            value = getattr(self, name)
            check(is_one_of(value, known), name, value, f"one of {', '.join(known)}")
        for name, implied in _IMPLIED.get(self.task, {}).items():
            value = getattr(self, name)
            if value not in ("auto", *implied):
                raise ValueError(f"task={self.task!r} contradicts {name}={value!r}; leave one out.")
        pools = self.convert in ("embed", "classify") or self.pooler_config is not None
        if pools and "generate" in (self.runner, self.task):
            said = f"runner={self.runner!r}" if self.runner != "auto" else f"task={self.task!r}"
            other = "a pooler_config" if self.convert == "auto" else f"convert={self.convert!r}"
            raise ValueError(f"{said} contradicts {other}, which is for a pooling model.")


def resolve_pooling(config: ModelConfig, directory: Path, wanted: PoolingRequest) -> ModelConfig:
    """Decide what a model does. Returns its config with runner, tasks and pooler settings.

    Args:
        config: as its config.json says.
        directory: where Sentence Transformers' files would be.
        wanted: by the user; checked.

    Raises:
        ValueError: if the model cannot do what is wanted.
    """
    architecture = config.architecture
    generates = architecture.endswith(_GENERATE_SUFFIXES)
    if "generate" in (wanted.task, wanted.runner):
        if not generates:
            raise ValueError(
                f"{architecture} has no head for tokens: it cannot generate, only pool."
            )
        return config
    modules = read_modules(directory)
    automatic = wanted.task == wanted.runner == "auto" and wanted.convert in ("auto", "none")
    if automatic and wanted.pooler_config is None and modules is None and generates:
        return config
    if config.is_multimodal:
        raise ValueError(
            f"{config.multimodal_architecture} reads pictures or sound; such models generate here, "
            "and do not pool yet."
        )
    tasks = _tasks(config, wanted)
    settings = replace(wanted.pooler_config or PoolerConfig())
    if wanted.task == "reward" and settings.task is None:
        settings.task = tasks[-1]  # of tokens
    if _is_raw(config, wanted, tasks) and settings.use_activation is None:
        settings.use_activation = False
    settings.task = settings.task or tasks[0]
    if settings.task not in tasks:
        has = ", ".join(map(repr, tasks))
        raise ValueError(
            f"pooler_config.task={settings.task!r} is not a task of this model: {has}."
        )
    dense: tuple = ()
    if modules is not None and tasks == _EMBED:
        dense = modules.dense
        settings.seq_pooling_type = settings.seq_pooling_type or modules.pooling_type
        if settings.use_activation is None:
            settings.use_activation = modules.normalize
    usual = get_model_class(architecture).default_seq_pooling_type
    settings.seq_pooling_type = settings.seq_pooling_type or usual
    if architecture.endswith("ForProcessRewardModel"):
        settings.tok_pooling_type = settings.tok_pooling_type or "STEP"
        if wanted.task == "reward" and config.vocab_size > _STEP_TAG_ID:  # as 0.6.6 has it
            settings.step_tag_id = settings.step_tag_id or _STEP_TAG_ID
    settings.tok_pooling_type = settings.tok_pooling_type or "ALL"
    hf = config.hf_config
    matryoshka = getattr(hf, "matryoshka_dimensions", None)
    ok = matryoshka is None or (
        isinstance(matryoshka, list) and all(is_int(size, 1) for size in matryoshka)
    )
    check(ok, "matryoshka_dimensions in config.json", matryoshka, "a list of positive integers")
    config = replace(
        config,
        runner_type="pooling",
        pooler_config=settings,
        supported_tasks=tasks,
        dense_layers=dense,
        embedding_size=dense[-1].out_features if dense else config.hidden_size,
        matryoshka_dimensions=matryoshka or None,
        is_matryoshka=bool(matryoshka or getattr(hf, "is_matryoshka", False)),
    )
    PoolingParams().completed(config)  # what requests get that ask for nothing
    return config


def resolve_texts(config: ModelConfig, directory: Path, tokenizer: Path) -> ModelConfig:
    """Decide how long a text may be, and whether it is read in lower case. Returns the config.

    Sentence Transformers' file has the last word; without it, an encoder's tokenizer may name a
    length. (vLLM: ``_get_and_verify_max_len``)

    Args:
        config: of the model.
        directory: the model's.
        tokenizer: the tokenizer's.

    Raises:
        ValueError: if a file cannot be read, or holds other values.
    """
    length, lower = read_text_settings(directory)
    if length is None and config.is_encoder_only:
        length = read_model_max_length(tokenizer)
    return replace(config, max_seq_length=length, do_lower_case=lower)


def _tasks(config: ModelConfig, wanted: PoolingRequest) -> tuple[str, ...]:
    """The tasks of a pooling model, the engine's usual one first."""
    architecture = config.architecture
    task = wanted.task
    if architecture.endswith(_REWARD_SUFFIXES):
        for name, value in (("task", task), ("convert", wanted.convert)):
            allowed = f"'auto' or 'reward' for {architecture}, which scores tokens"
            check(value in ("auto", "none", "reward"), name, value, allowed)
        return ("token_classify",)
    classifies = architecture.endswith(_CLASSIFIER_SUFFIX)
    if wanted.convert == "none" and architecture.endswith(_GENERATE_SUFFIXES):
        allowed = f"'embed' or 'classify' for a pooling {architecture}, whose head is for tokens"
        check(False, "convert", wanted.convert, allowed)
    if task == "score":  # a cross-encoder has one label; others compare embeddings
        return _CLASSIFY if classifies and config.num_labels == 1 else _EMBED
    if "classify" in (task, wanted.convert):
        return _CLASSIFY
    if task in ("embed", "embedding") or wanted.convert == "embed":
        return _EMBED
    return _CLASSIFY if classifies else _EMBED


def _is_raw(config: ModelConfig, wanted: PoolingRequest, tasks: tuple[str, ...]) -> bool:
    """True for a reward model, whose scores may be any numbers; but steps are right or wrong."""
    if tasks == ("token_classify",):
        return not config.architecture.endswith("ForProcessRewardModel")
    return wanted.task == "reward"


def resolve_chunks(
    config: ModelConfig, chunked: bool | None, caching: bool | None
) -> tuple[bool, bool]:
    """Decide whether prompts come in chunks, and whether their beginnings are cached.

    Both by default, unless a pooling model needs each prompt whole.

    Args:
        config: after ``resolve_pooling``.
        chunked, caching: as the user wants it; None: where it can be.

    Raises:
        ValueError: if the user wants what cannot be.
    """
    if config.runner_type == "pooling" and (obstacle := _obstacle(config)) is not None:
        allowed = f"False or None, since {obstacle}"
        check(not chunked, "enable_chunked_prefill", chunked, allowed)
        check(not caching, "enable_prefix_caching", caching, allowed)
        return False, False
    return chunked is not False, caching is not False


def _obstacle(config: ModelConfig) -> str | None:
    """The reason why a prompt must come whole; None: it may come in chunks."""
    if config.is_encoder_only:
        return "an encoder reads each prompt whole"
    settings: Any = config.pooler_config
    for task in config.supported_tasks:
        kind = settings.pooling_type_of(task)
        if kind not in CHUNKABLE:
            return f"pooling type {kind} needs each prompt whole"
    return None
