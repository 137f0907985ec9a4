"""GenerationRequest: common fields of completions and chat, and their SamplingParams.

(vLLM: vllm/entrypoints/openai/completion/protocol.py and that of chats beside it)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from minivllm.config.structured_outputs import StructuredOutputsParams
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import INT64, EngineFields, StreamOptions
from minivllm.entrypoints.openai.response_format import (
    ResponseFormat,
    StructuredOutputs,
    structured_outputs_params,
)
from minivllm.logger import init_logger
from minivllm.sampling_params import (
    MIN_TEMPERATURE,
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
)

logger = init_logger(__name__)

# Fields with a default in the model's generation_config.json, else that of SamplingParams.
_MODEL_DEFAULTS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
# Fields that SamplingParams has, too.
_COPIED = (
    "n", "stop", "stop_token_ids", "min_tokens",
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words",
)  # fmt: skip


class IgnoredFields(EngineFields):
    """Fields of vLLM's requests that change no answer here.

    Clients of vLLM send them, and their types are checked as there. Fields that ask for a part that
    this server lacks are refused, not ignored.
    """

    session_id: str | None = None
    watermarking: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    return_token_offsets: bool | None = False
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    mm_payload: Literal["tensors", "none"] = "tensors"


class GenerationRequest(IgnoredFields):
    """Common fields of completions and chat, with vLLM's names and defaults."""

    n: int = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None  # tokens in a chunk
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
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
    bad_words: list[str] = Field(default_factory=list)
    # SamplingParams refuses them, with the reason; -1, an empty list or dict mean "off"
    thinking_token_budget: int | None = None
    logprob_token_ids: list[int] | None = None
    repetition_detection: dict[str, int] | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    echo: bool | None = False
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    counts_of_logprobs: ClassVar[tuple[str, ...]] = ("prompt_logprobs",)

    @model_validator(mode="before")
    @classmethod
    def _check_before_types(cls, body: Any) -> Any:
        """Checks whose error messages come before type errors."""
        if not isinstance(body, dict):
            return body
        if body.get("stream_options") and not body.get("stream"):
            raise RequestError("stream_options needs stream=true", "stream_options")
        for name in cls.counts_of_logprobs:
            asked = body.get(name)
            if asked is None:
                continue
            if not isinstance(asked, (int, float)):
                raise RequestError(f"{name} must be an integer, got {asked!r:.100}", name)
            if asked < 0 and asked != -1:
                raise RequestError(f"{name} must be at least 0 (or -1 for all), got {asked}", name)
        asked = body.get("prompt_logprobs")
        if body.get("stream") and asked is not None and (asked > 0 or asked == -1):
            raise RequestError("prompt_logprobs must be 0 with stream=true", "prompt_logprobs")
        return body

    @model_validator(mode="after")
    def _check_what_both_have(self):
        if self.model_extra:
            names = ", ".join(sorted(self.model_extra))
            logger.warning("fields that no request has are ignored: %.200r", names)
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise RequestError(
                f"temperature must be from 0 to 2, got {self.temperature}", "temperature"
            )
        asked = getattr(self, "logprobs", None)  # a number; in chat True or False
        if self.use_beam_search and asked is not None and asked is not False:
            raise RequestError("beams keep no logprobs; leave logprobs out", "logprobs")
        if self.structured_outputs_params() is not None and self.use_beam_search:
            raise RequestError("beams have no grammar; use use_beam_search=false")
        return self

    def structured_outputs_params(self) -> StructuredOutputsParams | None:
        """Constraints on the text, if there are any."""
        return structured_outputs_params(self.response_format, self.structured_outputs)

    def to_sampling_params(
        self, max_tokens: int, defaults: dict[str, Any], logprobs: int | None
    ) -> SamplingParams:
        """The SamplingParams of this request.

        Args:
            max_tokens: already within the limits of the context and the model.
            defaults: of the model, for fields that are null.
            logprobs: as in ``SamplingParams``.

        Raises:
            ValueError: for a value out of its range.
        """
        values = {name: getattr(self, name) for name in _COPIED}
        for name in _MODEL_DEFAULTS:
            value = getattr(self, name)
            value = defaults.get(name) if value is None else value
            if value is not None:
                values[name] = value
        if (
            0 < values.get("temperature", 0) < MIN_TEMPERATURE
        ):  # also values that ``LLM`` takes for 0
            values["temperature"] = MIN_TEMPERATURE
        if self.thinking_token_budget != -1:
            values["thinking_token_budget"] = self.thinking_token_budget
        values["logprob_token_ids"] = self.logprob_token_ids or None
        values["repetition_detection"] = self.repetition_detection or None
        prompt_logprobs = self.prompt_logprobs
        if prompt_logprobs is None and self.echo:
            prompt_logprobs = self.echoed_logprobs
        if self.kv_transfer_params is not None:
            values["extra_args"] = {"kv_transfer_params": self.kv_transfer_params}
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
        """Number of logprobs for the tokens of the echoed prompt; None for none."""
        return None

    def to_beam_search_params(self, max_tokens: int) -> BeamSearchParams:
        """BeamSearchParams for the ``n`` most likely continuations, whatever the temperature.

        Raises:
            ValueError: for a value out of its range.
        """
        params = BeamSearchParams(
            beam_width=self.n,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            skip_special_tokens=self.skip_special_tokens,
        )
        params._ends_at_own_eos = True
        return params

    def _token_biases(self) -> dict[int, float] | None:
        """The biases by token id, an integer; JSON's keys are text. They are clipped to ±100."""
        if self.logit_bias is None:
            return None
        wrong = [key for key in self.logit_bias if not key.isdecimal()]
        if wrong:
            raise RequestError(f"logit_bias has keys that are no token ids: {wrong}", "logit_bias")
        # in this order, as in vLLM, NaN becomes -100
        return {int(key): min(100.0, max(-100.0, v)) for key, v in self.logit_bias.items()}
