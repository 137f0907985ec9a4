"""Request and response types of /v1/completions.

(vLLM: vllm/entrypoints/openai/completion/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.protocol import TokenId, UsageInfo

_MOST_PROMPTS = 1024  # of one request, as in vLLM
_DEFAULT = 16  # max_tokens, as in OpenAI's API


class CompletionRequest(GenerationRequest):
    """Prompts to be continued: a text, texts, token ids, or lists of token ids."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    max_tokens: Annotated[int, BeforeValidator(lambda n: _DEFAULT if n is None else n)] = _DEFAULT
    logprobs: int | None = None
    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None
    add_special_tokens: bool = True

    counts_of_logprobs: ClassVar[tuple[str, ...]] = ("prompt_logprobs", "logprobs")

    @model_validator(mode="after")
    def _check_prompt(self):
        if self.prompt_embeds:
            raise RequestError("a prompt is text or token ids here", "prompt_embeds")
        if self.prompt is None or self.prompt == "":
            raise RequestError("prompt must be there and not be empty", "prompt")
        if not self.prompt:
            raise RequestError("prompt must hold at least one prompt")
        if len(self.prompts) > _MOST_PROMPTS:
            raise RequestError(
                f"a request may have {_MOST_PROMPTS} prompts, got {len(self.prompts)}", "prompt"
            )
        if self.use_beam_search and self.stream:
            raise RequestError("beams have no order to stream in; use stream=false")
        if self.suffix is not None:
            raise RequestError("suffix needs a model that fills in, which this is not", "suffix")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt or several, as a list."""
        prompt: Any = self.prompt
        one = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if one else prompt

    @property
    def only_echo(self) -> bool:
        """True for a request of the prompt alone. The engine generates one token nevertheless."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def echoed_logprobs(self) -> int | None:
        return self.logprobs


class CompletionLogProbs(BaseModel):
    """Four lists with an entry for each token. The first token of a prompt has no logprob."""

    text_offset: list[int] = Field(default_factory=list)
    token_logprobs: list[float | None] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = Field(default_factory=list)


class CompletionResponseChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    routed_experts: None = None


class CompletionResponse(BaseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionResponseChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None
    metrics: dict[str, float | None] | None = None
