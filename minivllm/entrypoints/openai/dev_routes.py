"""Development endpoints, for teaching and tests: only a server in dev mode has them.

(vLLM: vllm/entrypoints/serve/dev/)
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request

from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.protocol import OpenAIBaseModel

router = APIRouter()


class AbortRequests(OpenAIBaseModel):
    """Body of /abort_requests: ids of the answers to abort; none is all."""

    request_ids: list[str] | None = None


@router.get("/server_info")
async def server_info(raw: Request):
    """Return the flags that the server was started with."""
    secret = {"api_key"}
    args = vars(raw.app.state.served.args).items()
    return JSON({"vllm_config": {k: repr(v) for k, v in sorted(args) if k not in secret}})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(raw: Request):
    """Forget all cached blocks, if none is in use."""
    return JSON({"success": await raw.app.state.served.engine.reset_prefix_cache()})


@router.post("/pause")
async def pause(
    raw: Request, mode: Literal["abort", "wait", "keep"] = "abort", clear_cache: bool = True
):
    """Take no more steps; see ``AsyncLLM.pause_generation``."""
    await raw.app.state.served.engine.pause_generation(mode, clear_cache)
    return JSON({"status": "paused"})


@router.post("/resume")
async def resume(raw: Request, num_steps: int | None = None):
    """Go on; see ``AsyncLLM.resume_generation``."""
    await raw.app.state.served.engine.resume_generation(num_steps)
    return JSON({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(raw: Request):
    return JSON({"is_paused": await raw.app.state.served.engine.is_paused()})


@router.get("/is_sleeping")
async def is_sleeping():
    """False: this engine does not sleep."""
    return JSON({"is_sleeping": False})


@router.post("/abort_requests")
async def abort_requests(raw: Request, request: AbortRequests):
    """End requests: their answers say finish_reason "abort".

    The number is of the ids that were named, in progress or not; without ids, of the requests.
    """
    engine = raw.app.state.served.engine
    named = request.request_ids
    ids = [
        engine_id
        for engine_id in engine.request_ids
        if not named or any(engine_id.startswith(f"{one}-") for one in named)
    ]
    await engine.abort(ids)
    return JSON({"aborted": len(named or ids), "status": "aborted"})
