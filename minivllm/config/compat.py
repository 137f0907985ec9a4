"""Names of vLLM 0.6.6, turned into today's; and arguments of vLLM with only their default here.

``EngineArgs`` and ``SamplingParams`` take these names. Behind them only today's are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minivllm.config.pooler import PoolerConfig, make_pooler_config
from minivllm.config.speculative import NGRAM_MODELS, SHORT_NAMES
from minivllm.config.structured_outputs import (
    StructuredOutputsConfig,
    StructuredOutputsParams,
    check_backend,
)
from minivllm.utils.validation import check, is_only, known_names_only

# Arguments of vLLM's LLM(...) that scripts pass, of which we have the default only, and why.
ENGINE_DEFAULTS_ONLY: dict[str, tuple[Any, str]] = {
    "tokenizer_mode": ("auto", "the fast tokenizer is used whenever there is one"),
    "use_v2_block_manager": (True, "there is no other"),
    "cpu_offload_gb": (0, "weights stay on one device"),
}
# The same of SamplingParams.
SAMPLING_DEFAULTS_ONLY: dict[str, tuple[Any, str]] = {
    "best_of": (None, "draw n with logprobs=0 and keep those with the best cumulative_logprob"),
    "logprob_token_ids": (None, "logprobs=-1 reports all tokens"),
    "flat_logprobs": (False, "logprobs are dicts of Logprob"),
    "stream_interval": (None, "a stream has an output for every token"),
    "thinking_token_budget": (None, "no part of an output is counted by itself"),
    "repetition_detection": (None, "penalties discourage repetition"),
}
# 0.6.6's arguments of the engine, and the key of speculative_config that each one is today.
SPECULATIVE_NAMES = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}


def check_defaults_only(args: Any, table: dict[str, tuple[Any, str]]) -> None:
    """Raise ``InvalidParameter`` for an argument in ``table`` that is not its default."""
    for name, (default, why) in table.items():
        value = getattr(args, name)
        allowed = f"{default!r} in minivllm (as in vLLM by default: {why})"
        check(is_only(value, default), name, value, allowed)


def speculative_config(args: Any) -> Any:
    """The engine's ``speculative_config``, or the one that its arguments of 0.6.6 say.

    Raises:
        ValueError: for both ways at once, or without one that the method needs.
    """
    old = {n: getattr(args, n) for n in SPECULATIVE_NAMES if getattr(args, n) is not None}
    if not old:
        return args.speculative_config
    first = next(iter(old))
    for name in (*SHORT_NAMES, "speculative_config"):
        check(getattr(args, name) is None, first, old[first], f"None beside {name}")
    for name in ("speculative_model", "num_speculative_tokens"):
        check(name in old, name, None, f"given beside {first}")
    if old["speculative_model"] in NGRAM_MODELS:
        check(
            "ngram_prompt_lookup_max" in old, "ngram_prompt_lookup_max", None, "given for n-grams"
        )
        old.setdefault("ngram_prompt_lookup_min", 1)  # its default
    return {SPECULATIVE_NAMES[name]: value for name, value in old.items()}


def structured_outputs_config(args: Any) -> Any:
    """The engine's ``structured_outputs_config``, or that of 0.6.6's ``guided_decoding_backend``.

    Raises:
        ValueError: for both at once, or an unknown backend.
    """
    name = "guided_decoding_backend"
    backend = args.guided_decoding_backend
    if backend is None:
        return args.structured_outputs_config
    ok = args.structured_outputs_config is None
    check(ok, name, backend, "None beside structured_outputs_config")
    return StructuredOutputsConfig(check_backend(name, backend))


def structured_outputs(params: Any) -> StructuredOutputsParams | None:
    """``structured_outputs`` of SamplingParams, or what 0.6.6's ``guided_decoding`` says.

    Raises:
        ValueError: for both at once, or another type.
    """
    form = params.structured_outputs
    old = params.guided_decoding
    ok = form is None or isinstance(form, StructuredOutputsParams)
    check(ok, "structured_outputs", form, "a StructuredOutputsParams, or None")
    if old is None:
        return form
    ok = isinstance(old, GuidedDecodingParams)
    check(ok, "guided_decoding", old, "a GuidedDecodingParams, or None")
    check(form is None, "guided_decoding", old, "None beside structured_outputs")
    return old.structured_outputs()


def pooler_config(args: Any) -> PoolerConfig | None:
    """The engine's ``pooler_config``, or what 0.6.6's ``override_pooler_config`` says.

    Raises:
        ValueError: for both at once, or as ``PoolerConfig``.
    """
    name = "override_pooler_config"
    old = args.override_pooler_config
    if old is None:
        return make_pooler_config(args.pooler_config)
    check(args.pooler_config is None, name, old, "None beside pooler_config")
    return make_pooler_config(old, name)


@known_names_only
@dataclass
class GuidedDecodingParams:
    """0.6.6's name for StructuredOutputsParams; ``SamplingParams(guided_decoding=...)`` takes it.

    Args:
        json, regex, choice, grammar, json_object, whitespace_pattern: as there.
        backend: of this request alone; None is the engine's.

    Raises:
        ValueError: as there, and for an unknown backend.
    """

    json: str | dict | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    backend: str | None = None
    whitespace_pattern: str | None = None

    def __post_init__(self):
        self.structured_outputs()

    def structured_outputs(self) -> StructuredOutputsParams:
        """Convert to ``StructuredOutputsParams``."""
        params = StructuredOutputsParams(
            json=self.json,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object or None,
            whitespace_pattern=self.whitespace_pattern,
        )
        if self.backend is not None:
            params._backend = check_backend("backend", self.backend)
        return params
