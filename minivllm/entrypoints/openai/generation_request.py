"""GenerationRequest: common fields of completions and chat, and their SamplingParams.

(vLLM: vllm/entrypoints/openai/completion/protocol.py and that of chats beside it)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import (
    INT64,
    OpenAIBaseModel,
    ResponseFormat,
    StreamOptions,
)
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from minivllm.structured_outputs import StructuredOutputsParams

# null: what generation_config.json says, else SamplingParams' own default
_FROM_THE_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_AS_THEY_ARE = (
    "n", "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "min_tokens",
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words",
)  # fmt: skip


class GenerationRequest(OpenAIBaseModel):
    """The fields that both kinds of request have, with vLLM's names and defaults."""

    model: str | None = None
    n: int = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    echo: bool | None = False
    user: str | None = None
    request_id: str | None = None
    priority: Annotated[int, Field(ge=-INT64, lt=INT64)] = 0
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None

    @field_validator("n", "frequency_penalty", "presence_penalty", "min_tokens", mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any, info) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

    @model_validator(mode="after")
    def _check_what_both_have(self):
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true", "stream_options")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise RequestError(
                f"temperature must be from 0 to 2, got {self.temperature}", "temperature"
            )
        asked = self.prompt_logprobs
        if asked is not None and (asked < -1 or (self.stream and asked != 0)):
            raise RequestError(
                "prompt_logprobs must be at least 0 (or -1 for all), and 0 with stream=true, got "
                f"{asked}",
                "prompt_logprobs",
            )
        if self.cache_salt == "":
            raise RequestError("cache_salt must be a string that is not empty", "cache_salt")
        if self.use_beam_search and self.stream:
            raise RequestError("beams have no order to stream in; use stream=false")
        if self.structured_outputs_params() is not None and self.use_beam_search:
            raise RequestError("beams have no grammar; use use_beam_search=false")
        return self

    def structured_outputs_params(self) -> StructuredOutputsParams | None:
        """StructuredOutputsParams of ``response_format`` or ``structured_outputs``.

        Raises:
            RequestError: for both at once, or one that is not well formed.
        """
        form, name = self.response_format, "structured_outputs"
        kinds = self.structured_outputs
        if form is not None and form.type != "text":
            if kinds is not None:
                raise RequestError("either response_format or structured_outputs, not both", name)
            name = "response_format"
            if form.type == "structural_tag":
                raise RequestError("structural tags are not there; use a grammar", name)
            kinds = {"json_object": True}
            if form.type == "json_schema":
                schema = (form.json_schema or {}).get("schema")
                if schema is None:
                    raise RequestError("type 'json_schema' needs json_schema.schema", name)
                kinds = {"json": schema}
        if kinds is None:
            return None
        try:
            return StructuredOutputsParams(**{str(key): value for key, value in kinds.items()})
        except (ValueError, TypeError) as error:
            raise RequestError(str(error), name) from error

    def to_sampling_params(
        self, max_tokens: int, defaults: dict[str, Any], logprobs: int | None
    ) -> SamplingParams:
        """The SamplingParams of this request.

        Args:
            max_tokens: already cut to what the context and the model's limit leave.
            defaults: of the model, for fields that are null.
            logprobs: how many, in the words of ``SamplingParams``.

        Raises:
            ValueError: for a value out of its range.
        """
        values = {name: getattr(self, name) for name in _AS_THEY_ARE}
        for name in _FROM_THE_MODEL:
            value = getattr(self, name)
            value = defaults.get(name) if value is None else value
            if value is not None:
                values[name] = value
        prompt_logprobs = self.prompt_logprobs
        if prompt_logprobs is None and self.echo:
            prompt_logprobs = self.echoed_logprobs
        return SamplingParams(
            **values,
            seed=self.seed if self.seed is None or self.seed == -1 else self.seed % INT64,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logit_bias=self._token_biases(),
            structured_outputs=self.structured_outputs_params(),
            output_kind=RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        )

    @property
    def echoed_logprobs(self) -> int | None:
        """How many logprobs the echoed prompt's tokens show; completions alone have that."""
        return None

    def to_beam_search_params(self, max_tokens: int) -> BeamSearchParams:
        """BeamSearchParams for the ``n`` most likely continuations."""
        return BeamSearchParams(
            beam_width=self.n,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature or 0.0,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    def _token_biases(self) -> dict[int, float] | None:
        """Token ids come as text, as JSON's keys do; biases beyond 100 count as 100."""
        if self.logit_bias is None:
            return None
        wrong = [key for key in self.logit_bias if not key.isdecimal()]
        if wrong:
            raise RequestError(f"logit_bias has keys that are no token ids: {wrong}", "logit_bias")
        return {int(key): max(-100.0, min(100.0, v)) for key, v in self.logit_bias.items()}
