"""Request and response types of the server, apart from completions and chat.

Stream chunks are not here: they are made as bytes (``chunk_writer``), one for every token.
(vLLM: vllm/entrypoints/serve/engine/protocol.py)
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

INT64 = 2**63


class OpenAIBaseModel(BaseModel):
    """Base of all bodies: unknown fields are ignored, as in vLLM's server."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(OpenAIBaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PromptTokenUsageInfo(BaseModel):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: int | None = None


class UsageInfo(BaseModel):
    """Tokens of all prompts (each counted once) and of all choices."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: dict[str, Any] | None = None


class ModelPermission(BaseModel):
    id: str
    object: str = "model_permission"
    created: int = Field(default_factory=lambda: int(time.time()))
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(BaseModel):
    """One name under which the model is served; ``root`` is where it comes from."""

    id: str
    object: str = "model"
    created: int = Field(default_factory=lambda: int(time.time()))
    owned_by: str = "vllm"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    permission: list[ModelPermission] = Field(default_factory=list)


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard] = Field(default_factory=list)


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
