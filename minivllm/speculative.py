"""SpeculativeConfig: who guesses the next tokens, and how many.

It is checked when it is made, and knows vLLM 0.6.6's names, too. (vLLM: vllm/config/speculative.py)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from minivllm.validation import check, is_int

METHODS = ("ngram", "custom_class")
NGRAM_MODELS = ("ngram", "[ngram]")  # names of a draft model that mean none
MAX_SPECULATIVE_TOKENS = 128  # vLLM's limit


@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made.

    Raises:
        ValueError: for a value out of range, naming it.
    """

    num_speculative_tokens: int  # the most drafts of a sequence in a step
    method: str | None = None  # "ngram"; "custom_class" for a proposer of your own
    model: Any = None  # "ngram", or an object with ``propose``; see ``Proposer``
    prompt_lookup_max: int | None = None  # the longest n-gram that is looked up; None: as min, or 5
    prompt_lookup_min: int | None = None  # the shortest; None: as max, or 5

    def __post_init__(self):
        k, model = self.num_speculative_tokens, self.model
        ok = is_int(k, 1) and k <= MAX_SPECULATIVE_TOKENS
        allowed = f"an integer from 1 to {MAX_SPECULATIVE_TOKENS}"
        check(ok, "num_speculative_tokens", k, allowed)
        own = callable(getattr(model, "propose", None))
        ok = own or model is None or (isinstance(model, str) and model in NGRAM_MODELS)
        check(ok, "the speculative model", model, "'ngram' or an object with a method propose")
        method = self.method or ("custom_class" if own else "ngram" if model else None)
        ok = isinstance(method, str) and method in METHODS
        check(ok, "the speculative method", method, f"one of {', '.join(METHODS)}")
        check(
            own == (method == "custom_class"), "the speculative method", method,
            "'custom_class' with an object as model, and 'ngram' without",
        )  # fmt: skip
        object.__setattr__(self, "method", method)
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
            ok = value is None or is_int(value, 1)
            check(ok, name, value, "an integer of at least 1, or None")
            ok = value is None or method == "ngram"
            check(ok, name, value, "None where nothing is looked up")
        default = high or low or 5
        low, high = low or default, high or default
        check(low <= high, "prompt_lookup_min", low, f"at most prompt_lookup_max={high}")
        object.__setattr__(self, "prompt_lookup_min", low)
        object.__setattr__(self, "prompt_lookup_max", high)


def make_speculative_config(
    config: SpeculativeConfig | dict | None, old_names: dict[str, Any]
) -> SpeculativeConfig | None:
    """The engine's arguments as one object; None without speculation.

    Args:
        config: what ``speculative_config`` says.
        old_names: what 0.6.6's four arguments say. Its ``ngram_prompt_lookup_min`` is 1 by default.

    Raises:
        ValueError: for bad ones, for an unknown key, or for both ways at once.
    """
    given = [name for name, value in old_names.items() if value is not None]
    if isinstance(config, SpeculativeConfig):
        config = {field.name: getattr(config, field.name) for field in fields(config)}
    check(config is None or isinstance(config, dict), "speculative_config", config, "a dict")
    if config is not None:
        for name in given:
            check(False, name, old_names[name], "None beside speculative_config")
        known = [field.name for field in fields(SpeculativeConfig)]
        for key in config:
            allowed = f"one of its keys: {', '.join(known)}"
            check(key in known, "speculative_config", key, allowed)
        k = config.get("num_speculative_tokens")
        check(k is not None, "speculative_config['num_speculative_tokens']", k, "given")
        return SpeculativeConfig(**config)
    if not given:
        return None
    for name in ("speculative_model", "num_speculative_tokens"):
        check(old_names[name] is not None, name, None, f"given beside {given[0]}")
    lookup_max, lookup_min = (old_names[f"ngram_prompt_lookup_{end}"] for end in ("max", "min"))
    if old_names["speculative_model"] in NGRAM_MODELS:
        check(lookup_max is not None, "ngram_prompt_lookup_max", None, "given for n-grams")
        lookup_min = lookup_min if lookup_min is not None else 1
    return SpeculativeConfig(
        old_names["num_speculative_tokens"],
        model=old_names["speculative_model"],
        prompt_lookup_max=lookup_max,
        prompt_lookup_min=lookup_min,
    )
