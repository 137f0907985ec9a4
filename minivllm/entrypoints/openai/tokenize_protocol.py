"""Request types of /tokenize. (vLLM: vllm/entrypoints/serve/tokenize/protocol.py)"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from minivllm.entrypoints.openai.conversation import ChatCompletionToolsParam, Message
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.other_fields import MediaFields
from minivllm.entrypoints.openai.protocol import OpenAIBaseModel


class TokenizeCompletionRequest(OpenAIBaseModel):
    """A text."""

    model: str | None = None
    prompt: str
    messages: None = None  # a body with both is the other kind
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(MediaFields):
    """A conversation that the chat template writes."""

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
