"""Request and response types of /tokenize and /detokenize.

(vLLM: vllm/entrypoints/serve/tokenize/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from minivllm.entrypoints.openai.chat_completion.conversation import (
    ChatCompletionToolsParam,
    MediaFields,
    Message,
)
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import INT64, OpenAIBaseModel


class TokenizeCompletionRequest(OpenAIBaseModel):
    """Body of /tokenize with a text."""

    model: str | None = None
    prompt: str
    messages: None = None  # a body with both is a TokenizeChatRequest
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(MediaFields):
    """Body of /tokenize with a conversation, which the chat template renders."""

    model: str | None = None
    messages: list[Message]
    add_special_tokens: bool = False
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ChatCompletionToolsParam] | None = None

    @model_validator(mode="after")
    def _check_ending(self):
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt cannot both be true"
            )
        return self


TokenizeRequest = TokenizeCompletionRequest | TokenizeChatRequest


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(OpenAIBaseModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, lt=INT64)]]


class DetokenizeResponse(BaseModel):
    prompt: str
