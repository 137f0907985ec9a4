"""Request and response types of the server, apart from completions and chat.

Chunks of streams have no types: they are made as bytes (``chunk_writer``), one for every token.
(vLLM: vllm/entrypoints/serve/engine/protocol.py)
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from minivllm.entrypoints.openai.errors import RequestError

INT64 = 2**63
TokenId = Annotated[int, Field(ge=0)]
_LONGEST_SALT = 128  # characters, as in vLLM


class OpenAIBaseModel(BaseModel):
    """Base of all bodies: unknown fields are ignored, as in vLLM's server."""

    model_config = ConfigDict(extra="allow")


class EngineFields(OpenAIBaseModel):
    """Fields of every request that the engine runs."""

    model: str | None = None
    user: str | None = None  # read by no one
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = Field(default_factory=lambda: uuid.uuid4().hex[:16])
    priority: Annotated[int, Field(ge=-INT64, lt=INT64)] = 0
    cache_salt: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_cache_salt(cls, body: Any) -> Any:
        """Check that it is None, or may be part of a cache's key or file name."""
        salt = body.get("cache_salt") if isinstance(body, dict) else None
        if salt is None:
            return body
        ok = isinstance(salt, str) and 0 < len(salt) <= _LONGEST_SALT
        if not ok or any(character in "@/\\\0" for character in salt):
            raise RequestError(
                f"cache_salt must be a string of 1 to {_LONGEST_SALT} characters without @, /, \\ "
                "and NUL",
                "cache_salt",
            )
        return body


class StreamOptions(OpenAIBaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PromptTokenUsageInfo(BaseModel):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None  # by modality; among the prompt's tokens


class UsageInfo(BaseModel):
    """Tokens of all prompts (each counted once) and of all choices."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: dict[str, Any] | None = None
