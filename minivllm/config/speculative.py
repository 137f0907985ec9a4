"""SpeculativeConfig: method and number of draft tokens.

It is checked when it is made. (vLLM: vllm/config/speculative.py)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from minivllm.logger import init_logger
from minivllm.utils.validation import check, is_int, shown

logger = init_logger(__name__)

METHODS = ("ngram", "draft_model", "custom_class")
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
NGRAM_MODELS = ("ngram", "[ngram]")  # names of a draft model that mean none
MAX_SPECULATIVE_TOKENS = 128  # vLLM's limit
# Arguments of the engine that are short for its keys.
SHORT_NAMES = {
    "spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class SpeculativeConfig:
    """Configuration of speculative decoding.

    Raises:
        ValueError: for a value out of range, naming it.
    """

    num_speculative_tokens: int  # the most drafts of a sequence in a step
    method: str | None = None  # "ngram", "draft_model"; "custom_class": a proposer of your own
    model: Any = None  # "ngram", a draft model's directory or name, or an object with ``propose``
    # The longest n-gram that is looked up, and the shortest. None: as the other one; if both are,
    # 5 for "ngram". Beside a draft model: it guesses only where no n-gram is found.
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    # how a draft model chooses: its best token, or a draw from its distribution
    draft_sample_method: str = "greedy"

    def __post_init__(self):
        k = self.num_speculative_tokens
        model = self.model
        ok = is_int(k, 1) and k <= MAX_SPECULATIVE_TOKENS
        allowed = f"an integer from 1 to {MAX_SPECULATIVE_TOKENS}"
        check(ok, "num_speculative_tokens", k, allowed)
        implied = _method_of(model)
        allowed = "'ngram', the directory or name of a model, or an object with a method propose"
        check(model is None or implied is not None, "the speculative model", model, allowed)
        method = self.method or implied
        ok = isinstance(method, str) and method in METHODS
        check(ok, "the speculative method", method, f"one of {', '.join(METHODS)}")
        ok = method == implied or (method == "ngram" and model is None)
        allowed = f"{implied!r} with this model" if implied else "'ngram' without a model"
        check(ok, "the speculative method", method, allowed)
        object.__setattr__(self, "method", method)
        how = self.draft_sample_method
        ok = isinstance(how, str) and how in DRAFT_SAMPLE_METHODS
        check(ok, "draft_sample_method", how, f"one of {', '.join(DRAFT_SAMPLE_METHODS)}")
        ok = how == "greedy" or method == "draft_model"
        check(ok, "draft_sample_method", how, "'greedy' without a draft model")
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
            ok = value is None or is_int(value, 1)
            check(ok, name, value, "an integer of at least 1, or None")
            ok = value is None or method != "custom_class"
            check(ok, name, value, "None where nothing is looked up")
        default = 5 if method == "ngram" else None
        low, high = low or high or default, high or low or default
        if low is None or high is None:
            return
        check(low <= high, "prompt_lookup_min", low, f"at most prompt_lookup_max={high}")
        object.__setattr__(self, "prompt_lookup_min", low)
        object.__setattr__(self, "prompt_lookup_max", high)


def _method_of(model: Any) -> str | None:
    """The method for a value of ``speculative_model``; None if it cannot be one."""
    if callable(getattr(model, "propose", None)):
        return "custom_class"
    if isinstance(model, str) and model in NGRAM_MODELS:
        return "ngram"
    is_path = isinstance(model, (str, os.PathLike)) and bool(str(model))
    return "draft_model" if is_path else None


def num_useful_drafts(
    k: int, num_tokens: int, num_output_tokens: int, max_tokens: int | None, max_model_len: int
) -> int:
    """Number of drafts of a sequence that are of use, at most ``k``.

    Behind them the step that verifies them draws one more token in any case, and that must still be
    one that the request may have.
    """
    left = max_model_len - num_tokens
    if max_tokens is not None:
        left = min(left, max_tokens - num_output_tokens)
    return min(k, left - 1)


def slots_for_drafts(
    config: SpeculativeConfig | None, max_model_len: int, max_num_batched_tokens: int
) -> dict[str, Any]:
    """Fields of ``SchedulerConfig`` for drafts within these limits.

    K and V of a draft model lie behind the model's (lookahead), and it reads one token more.

    Raises:
        ValueError: if a sequence or a step is too short for that.
    """
    if config is None:
        return {}
    k = config.num_speculative_tokens
    most = max_model_len - 1
    check(k <= most, "num_speculative_tokens", k, f"at most {most}, below max_model_len")
    if config.method != "draft_model":
        return {"num_speculative_tokens": k}
    allowed = "at least 2: a draft model computes one token more than the model"
    check(max_num_batched_tokens > 1, "max_num_batched_tokens", max_num_batched_tokens, allowed)
    return {"num_speculative_tokens": k, "num_lookahead_tokens": k, "num_drafting_slots": 1}


def make_speculative_config(
    config: SpeculativeConfig | dict | None, short: dict[str, Any]
) -> SpeculativeConfig | None:
    """Make the SpeculativeConfig from the engine's arguments; None without speculation.

    Args:
        config: what ``speculative_config`` says.
        short: what the arguments of ``SHORT_NAMES`` say; they win over ``config``.

    Raises:
        ValueError: for bad ones, or an unknown key.
    """
    short = {name: value for name, value in short.items() if value is not None}
    if isinstance(config, SpeculativeConfig):
        config = {field.name: getattr(config, field.name) for field in fields(config)}
    check(config is None or isinstance(config, dict), "speculative_config", config, "a dict")
    if config is None and not short:
        return None
    config = dict(config or {})
    for name, value in short.items():
        before = config.get(SHORT_NAMES[name])
        if before is not None:
            message = "%s=%s is used, not the %s of speculative_config."
            logger.warning(message, name, shown(value), shown(before))
        config[SHORT_NAMES[name]] = value
    try:
        return _from_dict(config)
    except ValueError as error:
        if not short:
            raise
        raise ValueError(f"{', '.join(short)}: {error}") from error


def _from_dict(config: dict[str, Any]) -> SpeculativeConfig:
    known = [field.name for field in fields(SpeculativeConfig)]
    for key in config:
        check(key in known, "speculative_config", key, f"one of its keys: {', '.join(known)}")
    k = config.get("num_speculative_tokens")
    check(k is not None, "speculative_config['num_speculative_tokens']", k,
          "given, there or as spec_tokens")  # fmt: skip
    return SpeculativeConfig(**config)
