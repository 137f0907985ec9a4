"""Fields of all requests to a pooling model: texts, token ids or a conversation.

(vLLM: vllm/entrypoints/pooling/base/protocol.py)
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Discriminator, model_validator

from minivllm.entrypoints.openai.conversation import (
    ConversationFields,
    MediaFields,
)
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import EngineFields, TokenId
from minivllm.entrypoints.truncation import TruncationParams
from minivllm.pooling_params import PoolingParams

MOST_PROMPTS = 8192  # of one request


class PoolingFields(EngineFields, MediaFields):
    """Fields of every request to a pooling model."""

    use_activation: bool | None = None
    padding: Literal["do_not_pad"] | None = None  # prompts of any lengths share a batch

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, body: Any) -> Any:
        """Refuse fields that would be ignored: an earlier vLLM's, and one of two inputs."""
        if not isinstance(body, dict):
            return body
        if None not in (body.get("input"), body.get("messages")):
            raise RequestError("a request has either input or messages, not both", "messages")
        if "normalize" in body:
            raise RequestError(
                "Parameter `normalize` was removed; use `use_activation` instead.", "normalize"
            )
        return body

    @model_validator(mode="after")
    def _check_media(self):
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if getattr(self, name):
                raise RequestError(f"{name} is for images and sounds; this model has none", name)
        return self

    @property
    def truncation(self) -> TruncationParams:
        """Limits of a prompt's length."""
        return TruncationParams(self.truncate_prompt_tokens, self.truncation_side)


class Texts(PoolingFields):
    """A text, texts, token ids, or lists of token ids."""

    input: list[TokenId] | list[list[TokenId]] | str | list[str]
    messages: None = None
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt or several, as a list."""
        given: Any = self.input
        one = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if one else given


class Conversation(PoolingFields, ConversationFields):
    """One conversation, which the chat template renders."""

    add_generation_prompt: bool = False


def _form(body: Any) -> str:
    chat = isinstance(body, dict) and body.get("messages") is not None
    return "Chat" if chat else "Texts"


BY_FORM = Discriminator(_form)


def pooling_params(request: PoolingFields, task: str | None) -> PoolingParams:
    """The PoolingParams of a request.

    Raises:
        ValueError: for a value out of its range.
    """
    dimensions = getattr(request, "dimensions", None)
    return PoolingParams(task=task, use_activation=request.use_activation, dimensions=dimensions)
