"""Request and response types of the server, apart from completions and chat.

Chunks of streams have no types: they are made as bytes (``chunk_writer``), one for every token.
(vLLM: vllm/entrypoints/serve/engine/protocol.py)
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

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
