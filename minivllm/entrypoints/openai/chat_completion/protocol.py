"""Request and response types of /v1/chat/completions.

(vLLM: vllm/entrypoints/openai/chat_completion/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, model_serializer, model_validator

from minivllm.entrypoints.openai.chat_completion.tool_choice import check_tool_choice
from minivllm.entrypoints.openai.conversation import (
    ConversationFields,
    NamedToolChoice,
)
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.protocol import UsageInfo


class ChatCompletionRequest(GenerationRequest, ConversationFields):
    """A conversation to be answered, or its last message to be continued."""

    n: Annotated[int, BeforeValidator(lambda n: 1 if n is None else n)] = 1
    echo: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = True
    documents: list[dict[str, str]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    return_prompt_text: bool | None = None
    include_reasoning: bool = True  # for models that return it as a separate part

    counts_of_logprobs: ClassVar[tuple[str, ...]] = ("prompt_logprobs", "top_logprobs")

    @model_validator(mode="before")
    @classmethod
    def _check_choice_before_types(cls, body: Any) -> Any:
        """Check the tool choice. Without one, it is "auto" if there are tools."""
        if not isinstance(body, dict):
            return body
        if "tool_choice" not in body and body.get("tools"):
            body = body | {"tool_choice": "auto"}
        check_tool_choice(body.get("tools"), body.get("tool_choice"))
        return body

    @model_validator(mode="after")
    def _check_chat(self):
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
        if self.use_beam_search and self.tool_choice not in (None, "none", "auto"):
            raise RequestError("beams have no grammar to force a call; use use_beam_search=false")
        return self

    @property
    def echoed_logprobs(self) -> int | None:
        return self.top_logprobs or 0

    def with_own_fields(self, template_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Variables of the template. The request's own fields have precedence."""
        more = dict(template_kwargs)
        if self.documents is not None:
            more["documents"] = self.documents
        if self.reasoning_effort is not None:
            more["reasoning_effort"] = self.reasoning_effort
            more.setdefault("enable_thinking", self.reasoning_effort != "none")
        return more

    @property
    def most_tokens(self) -> int | None:
        """Token limit of the answer; None for the rest of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ChatMessage(BaseModel):
    role: str
    content: str | None = None
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = []

    @model_serializer(mode="wrap")
    def _without_calls_there_is_no_key(self, handler):
        shown = handler(self)
        if not self.tool_calls:
            del shown["tool_calls"]
        return shown


class TopLogProb(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogProb(TopLogProb):
    top_logprobs: list[TopLogProb] = []


class ChatCompletionLogProbs(BaseModel):
    content: list[TokenLogProb] | None = None


class ChatCompletionResponseChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatCompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: None = None


class ChatCompletionResponse(BaseModel):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None
    metrics: dict[str, float | None] | None = None
