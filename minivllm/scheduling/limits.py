"""Limits of a request: one that could never run is refused before it is added."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.request import Request
from minivllm.scheduling.encoder_inputs import EncoderInputs
from minivllm.scheduling.policies import SchedulingPolicy


def check_limits(
    request: Request,
    config: SchedulerConfig,
    policy: SchedulingPolicy,
    kv_manager: KVCacheManager,
) -> None:
    """Raise ``ValueError`` if a request could not run even on its own.

    If it has a priority, the policy must know priorities; and the pool must hold all of it.
    """
    n = len(request.prompt_token_ids)
    limit = config.max_model_len
    num_to_come = config.num_sampled_tokens_per_step  # none of a pooling request
    if n == 0:
        raise ValueError("the prompt is empty; it must have at least one token.")
    if n > (longest := limit - num_to_come):
        left = " and at least one token must be left for the output" if num_to_come else ""
        raise ValueError(
            f"the prompt has {n} tokens, but max_model_len is {limit}{left}; shorten it to "
            f"{longest} or raise max_model_len."
        )
    if request.priority != 0 and not policy.uses_priority:
        raise ValueError(
            f"priority is {request.priority}, but scheduling_policy is not 'priority'; "
            "choose that policy or leave the priority at 0."
        )
    params = request.sampling_params
    name = "n" if request.beam_params is None else "beam_width"
    if request.n > config.max_num_seqs:
        raise ValueError(
            f"{name} is {request.n}, but max_num_seqs is {config.max_num_seqs}, and all "
            f"sequences of a request run at once; lower {name} or raise max_num_seqs."
        )
    most_beams = config.max_num_batched_tokens // (1 + config.num_drafting_slots)
    if request.beam_params is not None and request.n > most_beams:
        raise ValueError(
            f"beam_width is {request.n}, but max_num_batched_tokens is "
            f"{config.max_num_batched_tokens}, room for {most_beams}, and all beams advance in the "
            "same step; lower beam_width or raise max_num_batched_tokens."
        )
    max_tokens = params.max_tokens if num_to_come else 0
    longest = limit if max_tokens is None else min(limit, n + max_tokens)
    # Computed again after a preemption, siblings share what the first of them computes in one
    # step. (The last token of a sequence has no K and V.)
    shared = min(n, config.max_num_batched_tokens, config.long_prefill_token_threshold or n)
    ahead = config.num_lookahead_tokens if request.beam_params is None else 0
    needed = kv_manager.max_num_blocks(shared, min(longest - num_to_come + ahead, limit), request.n)
    usable = kv_manager.block_pool.num_usable_blocks
    if needed > usable:
        raise ValueError(
            f"the request can grow to {request.n} x {longest} tokens, which takes {needed} "
            f"blocks of {kv_manager.block_size}, but the whole KV cache holds {usable}; "
            f"lower max_tokens or {name}, or enlarge the cache."
        )


def check_items(
    request: Request, encoder_inputs: EncoderInputs | None, others: Iterable[Request]
) -> None:
    """Raise ``ValueError`` if an item of a request could never be encoded, or has another's name.

    Args:
        request: is to be added.
        encoder_inputs: None if the model takes no items.
        others: requests that are not finished.
    """
    features = request.mm_features
    if not features:
        return
    if encoder_inputs is None:
        raise ValueError(
            f"the prompt has {len(features)} items ({features[0].modality}), but the model takes "
            "none: encoder_cache_size is 0."
        )
    sizes = {f.identifier: f.mm_position.num_embeds for other in others for f in other.mm_features}
    config, cache = encoder_inputs.config, encoder_inputs.cache
    most = min(config.max_num_encoder_input_tokens, config.encoder_cache_size)
    for index, feature in enumerate(features):
        size = feature.mm_position.num_embeds
        if size > most:
            raise ValueError(
                f"{feature.modality} {index} of the prompt has {size} embeddings, but "
                f"max_num_encoder_input_tokens is {config.max_num_encoder_input_tokens} and "
                f"encoder_cache_size is {config.encoder_cache_size}; use a smaller one, or raise "
                "what is too small."
            )
        known = sizes.setdefault(feature.identifier, cache.num_embeds_of(feature.identifier, size))
        if known != size:
            raise ValueError(
                f"{feature.modality} {index} of the prompt has {size} embeddings, but another item "
                f"of the identifier {feature.identifier!r} has {known}; give each an identifier of "
                "its own."
            )
