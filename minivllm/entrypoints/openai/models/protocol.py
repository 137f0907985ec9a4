"""Types of /v1/models, and of the endpoints that load and unload adapters.

(vLLM: vllm/entrypoints/openai/models/protocol.py, vllm/entrypoints/serve/lora/protocol.py)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pydantic import BaseModel, Field

from minivllm.entrypoints.openai.protocol import OpenAIBaseModel
from minivllm.utils.validation import check, is_text


@dataclass(frozen=True)
class BaseModelPath:
    """A name of the base model, and what was loaded."""

    name: str
    model_path: str


@dataclass(frozen=True)
class LoRAModulePath:
    """An adapter to be loaded when the server starts; see ``LoRARequest`` for the fields.

    Raises:
        ValueError: for a value of another type, naming it.
    """

    name: str
    path: str
    base_model_name: str | None = None

    def __post_init__(self):
        for field, value in vars(self).items():
            ok = is_text(value) or (value is None and field == "base_model_name")
            check(ok, field, value, "a string")


class LoadLoRAAdapterRequest(OpenAIBaseModel):
    """Body of /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadLoRAAdapterRequest(OpenAIBaseModel):
    """Body of /v1/unload_lora_adapter: the name decides."""

    lora_name: str
    lora_int_id: int | None = None


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
    """One name of the served model; ``root`` is its repository or path."""

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
