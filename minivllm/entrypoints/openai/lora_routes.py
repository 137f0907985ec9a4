"""Endpoints that load and unload adapters, if the environment allows it to clients.

(vLLM: vllm/entrypoints/serve/lora/api_router.py)
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse

from minivllm.entrypoints.openai.errors import json_only
from minivllm.entrypoints.openai.models.protocol import (
    LoadLoRAAdapterRequest,
    UnloadLoRAAdapterRequest,
)

router = APIRouter(dependencies=[Depends(json_only)])


@router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
async def load_lora_adapter(request: LoadLoRAAdapterRequest, raw: Request):
    return await raw.app.state.models.load_lora_adapter(request)


@router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
async def unload_lora_adapter(request: UnloadLoRAAdapterRequest, raw: Request):
    return await raw.app.state.models.unload_lora_adapter(request)
