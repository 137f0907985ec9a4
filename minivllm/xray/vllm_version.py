"""Needs of the tracer: what a vLLM must have; and what the header says of it."""

from __future__ import annotations

import inspect
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WRITTEN_FOR = "0.32.0"
_DRIFT = 0.01  # seconds: more is no delay between two looks at a clock

_REASONS = {  # status of a request that vLLM steps over -> reason of a RequestSkipped
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
    "WAITING_FOR_REMOTE_KVS": "remote_kv",
    "WAITING_FOR_STREAMING_REQ": "input",
}
# method -> names of arguments that the hooks give or take
_OF_SCHEDULER = {
    "add_request": ("request",),
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "reset_prefix_cache": (),
    "shutdown": (),
    "_preempt_request": ("request",),
    "_handle_blocked_waiting_request": ("request",),
    "_free_request": ("request",),
    "_update_request_with_output": ("request", "new_token_ids", "is_stale"),
}
_OF_MANAGER = {
    "allocate_new_blocks": ("request_id",),
    "add_local_computed_blocks": ("request_id", "new_computed_blocks"),
    "free": ("request_id",),
}
_OF_WINDOW = {
    "remove_skipped_blocks": ("request_id", "processed_computed_tokens"),
    "get_num_skipped_tokens": ("num_computed_tokens",),
}
# managers of a KV cache group that are followed, by their class's name
_FOLLOWED = {"FullAttentionManager": _OF_MANAGER, "SlidingWindowManager": _OF_MANAGER | _OF_WINDOW}
_OF_POOL = {
    "cache_full_blocks": (
        "request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size",
        "kv_cache_group_id",
    ),
    "get_num_free_blocks": (),
}  # fmt: skip
_ATTRIBUTES = (
    "requests", "running", "waiting", "max_num_scheduled_tokens", "kv_cache_config.num_blocks",
    "kv_cache_manager.coordinator.single_type_managers",
    "kv_cache_manager.coordinator.retention_interval", "hash_block_size", "pause_state",
    "max_num_active_reqs", "lora_config",
)  # fmt: skip


def check_needs(scheduler: Any, theirs: type, version: str) -> None:
    """Check that a scheduler of vLLM has what the hooks need.

    Args:
        theirs: vLLM's class, without hooks.

    Raises:
        RuntimeError: naming what is missing, or what of vLLM the hooks do not follow.
    """
    missing = _missing(theirs, _OF_SCHEDULER, "Scheduler")
    missing += [f"Scheduler.{path}" for path in _ATTRIBUTES if not _has(scheduler, path)]
    if not missing:
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        _check_groups(managers, scheduler.hash_block_size)
        if scheduler.connector is not None:
            raise RuntimeError("the X-ray does not follow a vLLM with a KV connector.")
        for manager in {type(manager): manager for manager in managers}.values():
            name = type(manager).__name__
            missing += _missing(manager, _FOLLOWED[name], name)
        missing += _missing(managers[0].block_pool, _OF_POOL, "BlockPool")
    if missing:
        raise RuntimeError(
            f"the X-ray was written for vLLM {WRITTEN_FOR}; vLLM {version} lacks "
            f"{', '.join(missing)}."
        )


def _check_groups(managers: Sequence[Any], hash_block_size: int) -> None:
    """Raise ``RuntimeError`` for a KV cache group that is not followed, naming it."""
    for group, manager in enumerate(managers):
        name = type(manager).__name__
        what = ""
        if name not in _FOLLOWED:
            what = f"a {name}"
        elif manager.block_size != hash_block_size:
            what = f"blocks of {manager.block_size}, and hashes of {hash_block_size} tokens"
        elif extra := getattr(manager, "extra_retained_tokens", 0):
            what = f"{extra} tokens kept behind its window"
        if what:
            raise RuntimeError(
                f"the X-ray follows groups of KV caches with a {' or '.join(_FOLLOWED)} whose "
                f"blocks are hashed whole; group {group} of vLLM's {len(managers)} has {what}."
            )


def _groups_of(managers: Sequence[Any]) -> list[dict[str, Any]]:
    """KV cache groups as a header has them; none of full attention alone."""
    groups: list[dict[str, Any]] = []
    for manager in managers:
        group = {"kind": "full", "block_size": manager.block_size}
        if (window := getattr(manager, "sliding_window", None)) is not None:
            group |= {"kind": "sliding", "sliding_window": window}
        groups.append(group)
    return [] if [group["kind"] for group in groups] == ["full"] else groups


def header_of(scheduler: Any, version: str, text: bool) -> dict[str, Any]:
    """The header of a scheduler's X-ray, see ``XRay``."""
    config = scheduler.vllm_config
    planning = config.scheduler_config
    model = config.model_config.model
    engine = engine_of(config.parallel_config)
    coordinator = scheduler.kv_cache_manager.coordinator
    groups = _groups_of(coordinator.single_type_managers)
    of_windows = {
        "prefix_cache_retention_interval": coordinator.retention_interval,
        "max_concurrent_batches": config.max_concurrent_batches,
    }
    return {
        "vllm_version": version,
        "scheduler": type(scheduler).__name__,
        "started": round(time.time(), 6),
        "model": Path(model).name if Path(model).exists() else model,
        **({} if engine is None else {"engine": engine}),
        "num_blocks": scheduler.kv_cache_config.num_blocks,
        "block_size": scheduler.block_size,
        **({"groups": groups} if groups else {}),
        "settings": {
            "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
            "max_num_seqs": scheduler.max_num_active_reqs,
            "max_model_len": config.model_config.max_model_len,
            "policy": str(planning.policy),
            "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "enable_chunked_prefill": bool(planning.enable_chunked_prefill),
            "long_prefill_token_threshold": planning.long_prefill_token_threshold,
            "num_speculative_tokens": config.num_speculative_tokens,
            "async_scheduling": bool(planning.async_scheduling),
            "num_lookahead_tokens": scheduler.num_lookahead_tokens,
            "watermark_blocks": scheduler.kv_cache_manager.watermark_blocks,
            "scheduler_reserve_full_isl": bool(planning.scheduler_reserve_full_isl),
            "long_prefill_token_threshold_adaptive": bool(
                planning.long_prefill_token_threshold_adaptive
            ),
            **(of_windows if groups else {}),
        },
        "text": text,
    }


def engine_of(parallel: Any) -> int | None:
    """Return which of several engines (``--data-parallel-size``) this process runs; None: one.

    vLLM tells an engine of a dense model that it is alone, but for its index and its name.
    """
    index = parallel.data_parallel_index
    is_named = "_DP" in multiprocessing.current_process().name
    return index if index or is_named or parallel.data_parallel_size > 1 else None


def why_skipped(request: Any) -> tuple[str, str, str]:
    """Return the row of a request that a plan of vLLM steps over, by its status."""
    reason = _REASONS.get(request.status.name, request.status.name.lower())
    return "RequestSkipped", request.request_id, reason


def asked_by(request: Any, started: float, text: bool, drift: float = 0.0) -> dict[str, Any]:
    """Return what a request of vLLM asks for, as its entry in ``XRay.requests``.

    Args:
        request: of vLLM.
        started: when the run began, by the wall clock.
        text: whether token ids are kept.
        drift: seconds that the wall clock was set forward since then.
    """
    asked = {
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "arrival_time": request.arrival_time - started,  # exact: vLLM may order by it
        "num_prompt_tokens": request.num_prompt_tokens,
    }
    if abs(drift) > _DRIFT:
        asked["clock_drift"] = round(drift, 6)
    params = request.sampling_params
    if params is not None:
        asked |= {
            "min_tokens": params.min_tokens,
            "eos_token_id": params.eos_token_id,
            "stop_token_ids": list(params.stop_token_ids or ()),
            "ignore_eos": params.ignore_eos,
        }
    if not text:
        asked["block_hashes"] = [digest[:8].hex() for digest in request.block_hashes]
    return asked


def _missing(owner: Any, methods: dict[str, tuple[str, ...]], name: str) -> list[str]:
    missing = []
    for method, arguments in methods.items():
        function = getattr(owner, method, None)
        if function is None:
            missing.append(f"{name}.{method}")
            continue
        known = inspect.signature(function).parameters
        missing += [f"{name}.{method}({a})" for a in arguments if a not in known]
    return missing


def _has(owner: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
