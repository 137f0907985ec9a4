"""IgnoredFields: fields of vLLM's requests that change no answer here.

Clients of vLLM send them, and their types are checked as there. Fields that ask for a part that
this server lacks are refused, not ignored.
(vLLM: vllm/entrypoints/openai/completion/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from minivllm.entrypoints.openai.protocol import OpenAIBaseModel


class IgnoredFields(OpenAIBaseModel):
    """Fields of completions and chat whose types are checked, and whose values are not used."""

    user: str | None = None
    session_id: str | None = None
    watermarking: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    return_token_offsets: bool | None = False
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    mm_payload: Literal["tensors", "none"] = "tensors"
