"""Room: whether a request that waited had enough blocks, by the state at a plan of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from minivllm.trace.groups import TableGroup
from minivllm.trace.state import State
from minivllm.utils.math_utils import cdiv


class Room:
    """Blocks that vLLM wants to be free before it admits a request.

    Args:
        state: is kept up to date by the caller.
        settings: of the X-ray's header.
    """

    def __init__(self, state: State, settings: Mapping[str, Any]):
        self.state = state
        self._whole = settings.get("scheduler_reserve_full_isl", True)
        self._caches = settings.get("enable_prefix_caching", True)
        self._num_ahead = settings.get("num_lookahead_tokens", 0)
        self._watermark = settings.get("watermark_blocks", 0)
        self._groups = state.groups or (TableGroup(state.block_size),)
        num_plans = 1 + settings.get("async_scheduling", False)
        num_plans = settings.get("max_concurrent_batches", num_plans)
        self._in_flight = num_plans * settings.get("max_num_batched_tokens", inf)
        self._longest = settings.get("max_model_len", inf)
        self._common: dict[tuple[str, str], int] = {}  # blocks that two sequences begin with

    def is_missing(self, request_id: str, num_left: int) -> bool:
        """True if a request's tokens need more blocks than are free.

        Args:
            request_id: of one that waits.
            num_left: tokens of the budget. Without vLLM's reserve a part of a request may begin.
        """
        state = self.state
        num_tokens = len(state.sequences[request_id].token_ids)
        if not self._whole:
            num_tokens = min(num_tokens, num_left)
        needed = sum(self._num_needed(group, num_tokens) for group in self._groups)
        needed += self._watermark if state.running else 0
        num_free = len(state.free_queue)
        return needed > num_free and needed - self._num_shared(request_id) > num_free

    def _num_needed(self, group: TableGroup, num_tokens: int) -> int:
        """Blocks of a KV cache group: of a window, no more than it ever holds of a request."""
        if group.sliding_window is not None and self._whole:
            held = min(group.sliding_window - 1 + self._in_flight, self._longest, num_tokens)
            most = cdiv(int(held), group.block_size) + 1
            return min(cdiv(num_tokens, group.block_size), most)
        return cdiv(num_tokens + self._num_ahead, group.block_size)

    def forget_all_but(self, alive: set[str]) -> None:
        """Forget what is known of requests that have ended."""
        self._common = {key: n for key, n in self._common.items() if {*key} <= alive}

    def _num_shared(self, request_id: str) -> int:
        """Number of blocks that are cached and in use, with which a request would begin.

        Where there are windows, none: these keep few, and a hit is what all groups have.
        """
        most = 0
        state = self.state
        if any(group.sliding_window for group in self._groups):
            return 0
        for seq_id in state.running if self._caches else ():
            key = request_id, seq_id
            if key not in self._common:
                self._common[key] = self._num_common(request_id, seq_id)
            held = state.sequences[seq_id].block_ids[: self._common[key]]
            cached = next((i for i, b in enumerate(held) if b not in state.contents), len(held))
            most = max(most, cached)
        return most

    def _num_common(self, request_id: str, seq_id: str) -> int:
        sequences = self.state.sequences
        size = self.state.block_size
        ours, theirs = sequences[request_id].token_ids, sequences[seq_id].token_ids
        most = min(len(ours) - 1, len(theirs)) // size  # the last token is always computed
        for i in range(most):
            if ours[i * size : (i + 1) * size] != theirs[i * size : (i + 1) * size]:
                return i
        return most
