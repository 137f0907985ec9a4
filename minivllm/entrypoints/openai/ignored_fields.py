"""Fields of vLLM's requests that change no answer here: their types are checked, as they are there.

Clients that were written for vLLM send them. What would need a part that this server has not is
refused rather than ignored. (vLLM: vllm/entrypoints/openai/completion/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from minivllm.entrypoints.openai.protocol import OpenAIBaseModel


class IgnoredFields(OpenAIBaseModel):
    """Fields of completions and chat that are checked, and then not read."""

    user: str | None = None
    session_id: str | None = None
    watermarking: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    return_token_offsets: bool | None = False
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    mm_payload: Literal["tensors", "none"] = "tensors"
