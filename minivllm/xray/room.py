"""Room: whether a request that waited had enough blocks, by the state at a plan of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        needed = cdiv(num_tokens + self._num_ahead, state.block_size)
        needed += self._watermark if state.running else 0
        num_free = len(state.free_queue)
        return needed > num_free and needed - self._num_shared(request_id) > num_free

    def forget_all_but(self, alive: set[str]) -> None:
        """Forget what is known of requests that have ended."""
        self._common = {key: n for key, n in self._common.items() if {*key} <= alive}

    def _num_shared(self, request_id: str) -> int:
        """Number of blocks that are cached and in use, with which a request would begin."""
        most = 0
        state = self.state
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
