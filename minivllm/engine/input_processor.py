"""InputProcessor: turns a user's prompt and parameters into a validated Request.

(vLLM: vllm/v1/engine/input_processor.py)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from minivllm.config import VllmConfig
from minivllm.engine.multimodal import make_preprocessor
from minivllm.lora.request import LoRARequest
from minivllm.models.model_config import ModelConfig
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.multimodal.parse import items_of
from minivllm.multimodal.placeholders import with_own_placeholders
from minivllm.multimodal.preprocessor import MultiModalPreprocessor
from minivllm.multimodal.processor_cache import ProcessorCache
from minivllm.pooling_params import PoolingParams
from minivllm.quantization import gguf
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.utils.validation import check, check_names, is_int, is_number, is_text, shown

# What a prompt may say of its items beside its text.
_OF_ITEMS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "media_io_kwargs")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(directory: str | Path):
    """The Hugging Face tokenizer of a directory or a GGUF file.

    Raises:
        ValueError: if it holds no readable tokenizer.
    """
    try:
        if gguf.is_gguf(directory):
            tokenizer = gguf.load_tokenizer(directory)
        else:
            tokenizer = _tokenizer_of_directory(Path(directory))
    except Exception as error:
        raise ValueError(
            f"no tokenizer can be read from {str(directory)!r} ({error}); give a directory that "
            "has one as tokenizer=, or use skip_tokenizer_init=True and pass token ids."
        ) from error
    # as if it had warned of a long text already: the engine refuses what is too long
    said = tokenizer.deprecation_warnings
    said["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _tokenizer_of_directory(directory: Path):
    from transformers import AutoTokenizer

    # transformers would make an empty tokenizer from a directory that has none
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"none of {', '.join(_TOKENIZER_FILES)} is there")
    return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


@dataclass(frozen=True)
class EngineInput:
    """A prompt as the engine reads it: ``InputProcessor.preprocess`` makes it.

    (vLLM: vllm/inputs/engine.py)

    Args:
        prompt_token_ids: with all placeholders of its items.
        prompt: the text behind them, if there is one.
        cache_salt: only requests with the same salt share cached blocks.
        mm_features: its items, by offset.
    """

    prompt_token_ids: list[int]
    prompt: str | None = None
    cache_salt: str | None = None
    mm_features: list[MultiModalFeatureSpec] = field(default_factory=list)


Prompt = str | list[int] | dict | EngineInput


class InputProcessor:
    """Tokenizes prompts, processes their items and validates requests.

    Args:
        tokenizer: a Hugging Face tokenizer, or None if prompts are token ids only.
        model_config: for the vocabulary and the end-of-sequence tokens.
        seed: where requests without a seed of their own get theirs.
        max_model_len: the longest sequence; a prompt can be cut to one less.
        max_logprobs: how many best tokens a request may ask for; -1 is all.
        structured_output_manager: compiles grammars; None: one with the usual settings.
        enable_lora: whether a request may have an adapter.
        multimodal: reads pictures and sounds; None: the model takes none.
    """

    def __init__(
        self,
        tokenizer,
        model_config: ModelConfig,
        seed: int,
        max_model_len: int,
        max_logprobs: int = 20,
        structured_output_manager: StructuredOutputManager | None = None,
        enable_lora: bool = False,
        multimodal: MultiModalPreprocessor | None = None,
    ):
        # Special tokens may be added beyond the model's; those are refused where a prompt has them.
        if tokenizer is not None and tokenizer.vocab_size > model_config.vocab_size:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has "
                f"{model_config.vocab_size}: they do not fit; give the right tokenizer=."
            )
        self.tokenizer = tokenizer
        self.model_config = model_config
        self.max_model_len = max_model_len
        self.max_logprobs = max_logprobs
        self.enable_lora = enable_lora
        self.multimodal = multimodal
        self.structured_output_manager = structured_output_manager or StructuredOutputManager(
            tokenizer, model_config.vocab_size, model_config.eos_token_ids
        )
        self._seeds = Random(seed)

    @classmethod
    def from_config(cls, config: VllmConfig) -> InputProcessor:
        """Make the processor of an engine with this configuration, without the engine itself."""
        model = config.model_config
        directory = config.load_config.tokenizer_directory
        tokenizer = None if directory is None else load_tokenizer(directory)
        manager = StructuredOutputManager(
            tokenizer, model.vocab_size, model.eos_token_ids, config.structured_outputs_config
        )
        return cls(
            tokenizer,
            model,
            seed=config.seed,
            max_model_len=config.scheduler_config.max_model_len,
            max_logprobs=config.max_logprobs,
            structured_output_manager=manager,
            enable_lora=config.lora_config is not None,
            multimodal=make_preprocessor(config, tokenizer),
        )

    @property
    def processor_cache(self) -> ProcessorCache | None:
        """Cache of processed pictures and sounds; None: the model takes none."""
        return None if self.multimodal is None else self.multimodal.cache

    def preprocess(self, prompt: Prompt) -> EngineInput:
        """Encode a prompt; fetch, decode, resize and hash its items, and expand their placeholders.

        With items this takes its time: an event loop calls it in a thread.

        Args:
            prompt: as for ``make_request``; one that is processed already stays as it is.

        Raises:
            ValueError: naming what is wrong with the prompt or an item.
        """
        if isinstance(prompt, EngineInput):
            return prompt
        parts = self._parts(prompt)
        token_ids, text = self._encode(parts)
        features: list[MultiModalFeatureSpec] = []
        if self.multimodal is not None:
            self._check_ids("prompt_token_ids", token_ids)
            token_ids, features = self.multimodal.process(token_ids, parts)
        elif items_of(parts.get("multi_modal_data")):
            raise ValueError(f"{self.model_config.architecture} is not a multimodal model")
        return EngineInput(token_ids, text, parts.get("cache_salt"), features)

    def make_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams | PoolingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> Request:
        """Make the request for one prompt.

        Args:
            request_id: chosen by the caller.
            prompt: text, a list of token ids, ``{"prompt": text}`` or
                ``{"prompt_token_ids": [...]}``; a dict may have a ``"cache_salt"``, too, and
                ``"multi_modal_data"`` with its items by modality. See ``preprocess``.
            params: how to sample and when to stop; or what a pooling model does with the prompt.
            arrival_time: seconds of ``time.monotonic()``; None is now.
            priority: the smaller, the more important.
            lora_request: the adapter to use; None: the base model.

        Raises:
            ValueError: naming what is wrong with the prompt or the parameters.
        """
        check(is_text(request_id), "request_id", request_id, "a string without lone surrogates")
        self._check_kind(params)
        check(is_int(priority), "priority", priority, "an integer")
        self._check_lora(lora_request)
        ok = arrival_time is None or is_number(arrival_time)
        check(ok, "arrival_time", arrival_time, "a number of seconds, or None for now")
        given = self.preprocess(prompt)
        token_ids = given.prompt_token_ids
        self._check_ids("prompt_token_ids", token_ids)
        common: dict[str, Any] = {
            "prompt": given.prompt,
            "arrival_time": time.monotonic() if arrival_time is None else arrival_time,
            "priority": priority,
            "cache_salt": given.cache_salt,
            "lora_request": lora_request,
            "mm_features": given.mm_features,
        }
        if isinstance(params, PoolingParams):
            pooling_params = params.completed(self.model_config)
            return Request(request_id, token_ids, None, pooling_params=pooling_params, **common)
        beam_params = None
        eos_token_ids = self._own_eos()
        if isinstance(params, BeamSearchParams):
            beam_params = replace(params)  # the caller's may change while this waits
            if not params._ends_at_own_eos:
                eos_token_ids = self._all_eos()  # a beam is complete at any of them
            params = beam_params.for_one_beam()
            most = self.model_config.vocab_size // 2
            ok = beam_params.beam_width <= most
            check(ok, "beam_width", beam_params.beam_width, f"at most {most}, half the vocabulary")
        else:
            self._check_logprobs(params)
        params = self._complete(params)
        if (keep := params.truncate_prompt_tokens) is not None:
            most = self.max_model_len - 1  # one more token must fit, the first of the output
            allowed = f"at most {most}, one less than max_model_len"
            check(keep <= most, "truncate_prompt_tokens", keep, allowed)
            keep = most if keep == -1 else keep
            check_not_cut(given, keep)
            token_ids = token_ids[-keep:]
        return Request(
            request_id,
            token_ids,
            params,
            eos_token_ids,
            seed=params.seed if params.seed is not None else self._seeds.getrandbits(63),
            beam_params=beam_params,
            kv_transfer_params=params.kv_transfer_params,
            **common,
        )

    def _check_kind(self, params) -> None:
        """Raise ``ValueError`` unless these are parameters of what the model does."""
        if self.model_config.runner_type == "pooling":
            allowed = "a PoolingParams: this is a pooling model, it generates nothing"
            check(isinstance(params, PoolingParams), "params", params, allowed)
            return
        if isinstance(params, PoolingParams):
            raise ValueError("this model generates; load it with runner='pooling' to pool.")
        ok = isinstance(params, (SamplingParams, BeamSearchParams))
        check(ok, "sampling_params", params, "a SamplingParams or a BeamSearchParams")

    def _check_lora(self, lora_request: LoRARequest | None) -> None:
        if lora_request is None:
            return
        ok = isinstance(lora_request, LoRARequest)
        check(ok, "lora_request", lora_request, "a LoRARequest, or None for the base model")
        if not self.enable_lora:
            raise ValueError(f"Got lora_request {lora_request} but LoRA is not enabled!")

    def _own_eos(self) -> frozenset[int]:
        """The end-of-sequence token that gives no stop_reason: the tokenizer's own.

        The others that a model's files name are stop tokens. Without a tokenizer they cannot be
        told apart, so all of them are.
        """
        own: Any = getattr(self.tokenizer, "eos_token_id", None)
        if not is_int(own, 0) or own >= self.model_config.vocab_size:
            return self.model_config.eos_token_ids
        return frozenset([own])

    def _all_eos(self) -> frozenset[int]:
        return self.model_config.eos_token_ids | self._own_eos()

    def _check_ids(self, name: str, token_ids) -> None:
        vocab_size = self.model_config.vocab_size
        integers = set(map(type, token_ids)) == {int}
        if integers and min(token_ids) >= 0 and max(token_ids) < vocab_size:
            return  # the usual case, without a loop in Python
        for token_id in token_ids:
            ok = is_int(token_id, 0) and token_id < vocab_size
            check(ok, f"every id in {name}", token_id, f"an integer from 0 to {vocab_size - 1}")

    def _check_logprobs(self, params: SamplingParams) -> None:
        vocab_size = self.model_config.vocab_size
        limit = self.max_logprobs
        few = 0 <= limit < vocab_size
        allowed = f"max_logprobs={limit}" if few else f"{vocab_size}, the whole vocabulary"
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name) or 0
            num_asked = vocab_size if asked == -1 else asked
            ok = num_asked <= (limit if few else vocab_size)
            check(ok, name, asked, f"at most {allowed}")

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """Copy a request's sampling parameters, validate them, and fill in the model's defaults."""
        params = replace(params)
        params.min_tokens = min(params.min_tokens, self.max_model_len)  # no output is longer
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words", "logits_processors"):
            if (value := getattr(params, name)) is not None:
                setattr(params, name, list(value))
        if params.logit_bias is not None:
            params.logit_bias = dict(params.logit_bias)
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_ids(name, getattr(params, name) or ())
        for name, value in (("stop", params.stop_strings), ("bad_words", params.bad_words)):
            ok = self.tokenizer is not None or not value
            check(ok, name, value, "empty when skip_tokenizer_init=True: there is no text")
        params.all_stop_token_ids |= self._all_eos()
        if not params.ignore_eos:
            params.stop_reason_ids |= self._all_eos() - self._own_eos()
        params.bad_words_token_ids = self._encode_bad_words(params.bad_words or [])
        self._check_something_is_left(params)
        if params.structured_outputs is not None:  # a grammar that cannot be is found out now
            self.structured_output_manager.compile_grammar(
                params.structured_outputs, params.all_stop_token_ids
            )
        return params

    def _encode_bad_words(self, words: list[str]) -> list[list[int]]:
        """Token ids of bad words: each as at the start of a text, and as after a space."""
        encoded = []
        for word in words:
            for text in (word.lstrip(), " " + word.lstrip()):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                self._check_ids(f"bad_words ({word!r})", ids)
                if ids and ids not in encoded:
                    encoded.append(ids)
        return encoded

    @staticmethod
    def _check_something_is_left(params: SamplingParams) -> None:
        allowed = params.allowed_token_ids
        if allowed is None:
            return
        left = set(allowed) - {ids[0] for ids in params.bad_words_token_ids if len(ids) == 1}
        if params.min_tokens:
            left -= params.all_stop_token_ids
        if not left:
            raise ValueError(
                f"allowed_token_ids is {shown(allowed)}, and bad_words and min_tokens forbid all "
                "of them; allow one more."
            )

    def _parts(self, prompt: Any) -> dict:
        """A prompt as a dict. Raises ``ValueError`` for a form or a key that is not known."""
        if isinstance(prompt, str):
            prompt = {"prompt": prompt}
        elif isinstance(prompt, (list, tuple)):
            prompt = {"prompt_token_ids": prompt}
        ok = isinstance(prompt, dict) and ("prompt" in prompt or "prompt_token_ids" in prompt)
        allowed = "a string, a list of token ids, {'prompt': ...} or {'prompt_token_ids': [...]}"
        check(ok, "a prompt", prompt, allowed)
        check_names("a prompt", prompt, ("prompt", "prompt_token_ids", "cache_salt", *_OF_ITEMS))
        salt = prompt.get("cache_salt")
        ok = salt is None or (is_text(salt) and salt != "")
        check(ok, "cache_salt", salt, "a non-empty string without lone surrogates")
        return prompt

    def _encode(self, prompt: dict) -> tuple[list[int], str | None]:
        """Encode a prompt: its token ids, and the text behind them if there is one."""
        text = prompt.get("prompt")
        ids = prompt.get("prompt_token_ids")
        if ids is not None:
            check(isinstance(ids, (list, tuple)), "prompt_token_ids", ids, "a list of integers")
            ok = text is None or is_text(text)
            check(ok, "prompt", text, "a string without lone surrogates")
            return list(ids), text
        check(is_text(text), "prompt", text, "a string without lone surrogates")
        if self.tokenizer is None:
            raise ValueError(
                "skip_tokenizer_init=True leaves no tokenizer for a text prompt; "
                "give {'prompt_token_ids': [...]}."
            )
        read = str(text).lower() if self.model_config.do_lower_case else str(text)
        return self.tokenizer.encode(self.with_own_placeholders(read)), text

    def with_own_placeholders(self, text: str) -> str:
        """A text with the model's own placeholders in place of numbered ones."""
        known = {} if self.multimodal is None else self.multimodal.placeholders
        return with_own_placeholders(text, known)


def check_not_cut(prompt: EngineInput, keep: int) -> None:
    """Raise ``ValueError`` if a prompt with items has more tokens than these: it is never cut."""
    length = len(prompt.prompt_token_ids)
    ok = not prompt.mm_features or length <= keep
    allowed = f"at least {length}, the tokens of this prompt: one with pictures or sound is not cut"
    check(ok, "truncate_prompt_tokens", keep, allowed)
