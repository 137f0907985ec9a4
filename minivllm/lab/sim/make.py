"""Makers of requests and of the engine's scheduler, which run without a model.

The simulator, dry runs, replays, the playground and X-ray's what-if all make theirs here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.kv_cache_spec import KVCacheSpec, table_groups
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.drafting import PaddingScheduler, speculative_limits
from minivllm.lab.sim.workloads import SimRequest
from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.pooling_params import PoolingParams
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.scheduling import async_scheduler
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace

PLACEHOLDER = 4  # token id of a picture's placeholders


def make_request(
    name: str,
    prompt: int | list[int],
    num_output: int = 16,
    *,
    arrival_time: float = 0.0,
    priority: int = 0,
    cache_salt: str | None = None,
    lora_request: LoRARequest | None = None,
    pooling_params: PoolingParams | None = None,
    kv_transfer_params: dict[str, Any] | None = None,
    mm_features: list[MultiModalFeatureSpec] | None = None,
    **params: Any,
) -> Request:
    """Request that ends after a given number of tokens.

    Args:
        name: the request's id.
        prompt: token ids, or their number.
        num_output: tokens of each answer.
        arrival_time: in steps or in seconds, as what runs it counts.
        priority, cache_salt: as for ``Request``.
        lora_request: an adapter; none is read.
        pooling_params: of a request to a pooling model, which has no output.
        kv_transfer_params: what it asks of a KV connector.
        mm_features: items in the prompt.
        params: further fields of ``SamplingParams``.
    """
    sampling_params = None
    if pooling_params is None:
        sampling_params = SamplingParams(max_tokens=num_output, ignore_eos=True, **params)
    request = Request(
        name,
        [0] * prompt if isinstance(prompt, int) else prompt,
        sampling_params,
        pooling_params=pooling_params,
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        lora_request=lora_request,
        kv_transfer_params=kv_transfer_params,
        mm_features=mm_features,
    )
    if lora_request is not None:  # there are no files, and so no digest of them
        request.lora = LoadedLoRA.from_request(lora_request)
    return request


def picture_request(
    name: str,
    parts: Iterable[list[int] | tuple[str, int]],
    num_output: int = 16,
    arrival_time: float = 0.0,
) -> Request:
    """Request whose prompt has text and pictures.

    Args:
        name: the request's id.
        parts: token ids of a text, or ``(identifier, placeholders)`` of a picture.
        num_output: tokens of its answer.
        arrival_time: as for ``make_request``.
    """
    prompt: list[int] = []
    features = []
    for part in parts:
        if isinstance(part, list):
            prompt += part
            continue
        identifier, length = part
        place = PlaceholderRange(len(prompt), length)
        features.append(MultiModalFeatureSpec(None, "image", identifier, place))
        prompt += [PLACEHOLDER] * length
    return make_request(name, prompt, num_output, arrival_time=arrival_time, mm_features=features)


def make_entry(entry: SimRequest, request_id: str, arrival_time: float) -> Request:
    """Request of a workload's entry: samples, or beams."""
    if not entry.beams:
        limit = entry.num_output
        stop_token_ids = []
        if entry.stops:
            # one that is not the last of the prompt, which the simulated answer repeats
            stop_token_ids = [abs(entry.prompt_token_ids[-1]) + 1]
            limit += 1
        return make_request(
            request_id,
            entry.prompt_token_ids,
            limit,
            arrival_time=arrival_time,
            cache_salt=entry.cache_salt,
            n=entry.n,
            stop_token_ids=stop_token_ids,
        )
    beams = BeamSearchParams(entry.n, max_tokens=entry.num_output, ignore_eos=True)
    return Request(
        request_id,
        entry.prompt_token_ids,
        beams.for_one_beam(),
        arrival_time=arrival_time,
        beam_params=beams,
        cache_salt=entry.cache_salt,
    )


def make_scheduler(
    kv_manager: KVCacheManager, trace: Trace | None = None, *, num_stages: int = 1, **limits: Any
) -> Scheduler:
    """The engine's scheduler; ``limits`` are fields of ``SchedulerConfig``, named as for ``LLM``.

    With ``async_scheduling`` it is one for plans in flight, of a pipeline of ``num_stages``.

    Raises:
        ValueError: for an unknown policy.
    """
    config = SchedulerConfig(**limits)
    return async_scheduler.make_scheduler(config, kv_manager, trace, num_stages=num_stages)


def make_traced_scheduler(
    *,
    num_blocks: int,
    block_size: int,
    max_num_batched_tokens: int,
    enable_prefix_caching: bool,
    num_host_blocks: int = 0,
    kv_cache_manager_cls: Callable[..., KVCacheManager] = KVCacheManager,
    groups: Sequence[KVCacheSpec] = (),
    prefix_cache_retention_interval: int | None = 0,
    clock: Callable[[], float] = time.perf_counter,
    **limits: Any,
) -> Scheduler:
    """The engine's scheduler with a pool of blocks, and a trace of what both do.

    Args:
        num_blocks: the pool's size, the null block included.
        num_host_blocks: the same in host memory, for swapping.
        kv_cache_manager_cls: a ``KVCacheManager`` of your own.
        groups: of KV caches, of a model whose layers do not all keep all tokens. Then the limits
            need a ``max_model_len``.
        prefix_cache_retention_interval: what sliding windows among them keep for others.
        clock: of the trace.
        block_size, max_num_batched_tokens, enable_prefix_caching, limits: as for ``LLM``.

    Raises:
        ValueError: for an unknown policy.
    """
    sizes = ("max_num_encoder_input_tokens", "encoder_cache_size")
    of_items = {name: limits[name] for name in sizes if name in limits}
    trace = Trace(
        num_blocks,
        block_size,
        max_num_batched_tokens,
        clock=clock,
        groups=table_groups(groups),
        **of_items,
    )
    if groups:
        kv_cache_manager_cls = partial(
            HybridKVCacheManager,
            specs=groups,
            max_model_len=limits["max_model_len"],
            max_in_flight_tokens=max_num_batched_tokens,
            retention_interval=prefix_cache_retention_interval,
        )
    manager = kv_cache_manager_cls(
        num_blocks, block_size, enable_prefix_caching, num_host_blocks, trace
    )
    return make_scheduler(manager, trace, max_num_batched_tokens=max_num_batched_tokens, **limits)


def make_vllms_scheduler(
    kv_manager: KVCacheManager,
    trace: Trace | None = None,
    *,
    speculative: dict[str, Any] | None = None,
    num_stages: int = 1,
    scheduler_cls: type[Scheduler] | None = None,
    **limits: Any,
) -> Scheduler:
    """The scheduler with vLLM's habits, for runs of vLLM: cached blocks stay, drafts are padded.

    Args:
        kv_manager: will find also blocks that a preempted request did not fill.
        trace: as for ``make_scheduler``.
        speculative: "method" and "num_speculative_tokens"; None: there are no drafts.
        num_stages: of a pipeline whose steps are planned ahead (``async_scheduling``).
        scheduler_cls: one of your own; then there are no drafts, and no plan is made ahead.
        limits: as for ``make_scheduler``.
    """
    kv_manager.forgets_called_off = False
    if scheduler_cls is not None:
        return scheduler_cls(SchedulerConfig(**limits), kv_manager, trace)
    if speculative is None:
        return make_scheduler(kv_manager, trace, num_stages=num_stages, **limits)
    config = SchedulerConfig(**limits, **speculative_limits(speculative))
    return PaddingScheduler(config, kv_manager, trace)
