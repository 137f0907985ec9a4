"""Request and response types of /tokenize and /detokenize.

(vLLM: vllm/entrypoints/serve/tokenize/protocol.py)
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from minivllm.entrypoints.openai.conversation import ConversationFields
from minivllm.entrypoints.openai.protocol import INT64, OpenAIBaseModel


class TokenizeCompletionRequest(OpenAIBaseModel):
    """Body of /tokenize with a text."""

    model: str | None = None
    prompt: str
    messages: None = None  # a body with both is a TokenizeChatRequest
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(ConversationFields):
    """Body of /tokenize with a conversation, which the chat template renders."""

    model: str | None = None
    return_token_strs: bool | None = False


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
