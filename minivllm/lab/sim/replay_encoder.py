"""Replay of recordings with items, such as pictures: what a step encodes, keeps and forgets.

A recording whose config has ``encoder_cache_size`` has the keys of this file in each step, also if
no request has an item.
"""

from __future__ import annotations

from typing import Any

from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.validation import check, is_int

_SIZES = ("max_num_encoder_input_tokens", "encoder_cache_size")
_MOST = 10**6


class EncoderCacheRecorder:
    """Describes the encoder inputs of plans, and the encoder cache, as a recording does.

    Args:
        scheduler: whose plans and cache they are.
        config: of the recording. Without ``encoder_cache_size`` nothing is described.
    """

    def __init__(self, scheduler: Scheduler, config: dict[str, Any]):
        self.encoder_inputs = scheduler.encoder_inputs
        self.is_recorded = "encoder_cache_size" in config

    def after_schedule(self, plan: SchedulerOutput) -> dict[str, Any]:
        """Keys of a plan."""
        if not self.is_recorded:
            return {}
        return {
            "encoder": plan.scheduled_encoder_inputs,
            "freed_mm": plan.free_encoder_mm_hashes,
            **self._slots(""),
        }

    def after_update(self) -> dict[str, Any]:
        """Keys of the cache behind a step."""
        if not self.is_recorded:
            return {}
        cache = self.encoder_inputs and self.encoder_inputs.cache
        return {
            **self._slots("_after"),
            "enc_order_after": list(cache.freeable) if cache else [],
            "enc_cached_after": (
                {name: sorted(holders) for name, holders in cache.cached.items()} if cache else {}
            ),
        }

    def _slots(self, when: str) -> dict[str, int]:
        cache = self.encoder_inputs and self.encoder_inputs.cache
        return {
            f"enc_free{when}": cache.num_free_slots if cache else 0,
            f"enc_freeable{when}": cache.num_freeable_slots if cache else 0,
        }


def encoder_limits(config: dict[str, Any]) -> dict[str, Any]:
    """Fields of ``SchedulerConfig`` that a recording's config has for items."""
    names = (*_SIZES, "disable_chunked_mm_input")
    return {name: config[name] for name in names if config.get(name) is not None}


def read_items(entry: dict[str, Any]) -> list[MultiModalFeatureSpec]:
    """Items of a recorded request. They have no data: only places and sizes count."""
    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=item["hash"],
            mm_position=PlaceholderRange(item["offset"], item["length"], _is_embed(item)),
        )
        for item in entry.get("mm") or []
    ]


def _is_embed(item: dict[str, Any]) -> tuple[bool, ...] | None:
    mask = item.get("is_embed")
    return None if mask is None else tuple(map(bool, mask))


def validate_encoder_config(config: dict[str, Any]) -> None:
    """Raise ``ValueError`` for a size or switch that cannot be, by name."""
    for key in _SIZES:
        size = config.get(key)
        ok = size is None or (is_int(size, 0) and size <= _MOST)
        check(ok, f"config[{key!r}]", size, f"an integer from 0 to {_MOST}")
    switch = config.get("disable_chunked_mm_input", False)
    name = "config['disable_chunked_mm_input']"
    check(isinstance(switch, bool), name, switch, "true or false")


def validate_items(where: str, entry: dict[str, Any]) -> None:
    """Raise ``ValueError`` for items that cannot be, or that are not in the request's prompt."""
    items = entry.get("mm") or []
    check(isinstance(items, list), f"{where}['mm']", items, "a list")
    end = 0
    for index, item in enumerate(items):
        name = f"{where}['mm'][{index}]"
        ok = isinstance(item, dict) and item.keys() >= {"hash", "offset", "length"}
        check(ok, name, item, "an object with hash, offset and length")
        check(isinstance(item["hash"], str), f"{name}['hash']", item["hash"], "a string")
        ok = is_int(item["offset"], end)
        check(ok, f"{name}['offset']", item["offset"], f"at least {end}, behind the item before it")
        room = len(entry["prompt_token_ids"]) - item["offset"]
        ok = is_int(item["length"], 1) and item["length"] <= room
        check(ok, f"{name}['length']", item["length"], f"from 1 to {room}, the prompt's end")
        mask = item.get("is_embed")
        ok = mask is None or (
            isinstance(mask, list)
            and len(mask) == item["length"]
            and all(is_int(each, 0) and each <= 1 for each in mask)
        )
        check(ok, f"{name}['is_embed']", mask, "absent, or a 0 or 1 for each position")
        end = item["offset"] + item["length"]
