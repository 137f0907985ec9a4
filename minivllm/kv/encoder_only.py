"""EncoderOnlyKVCacheManager: the manager of a model that keeps no K and V.

An encoder reads its prompt in one step, each token all the others, and is done: there is nothing to
keep for a later step. (vLLM: such layers have no KV cache spec, so that there are zero groups)
"""

from __future__ import annotations

from minivllm.kv.block_table import KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit
from minivllm.request import Sequence


class EncoderOnlyKVCacheManager(KVCacheManager):
    """KVCacheManager whose block tables stay empty: every sequence fits, and takes no block."""

    def max_num_blocks(self, num_shared: int, num_tokens: int, n: int) -> int:
        return 0

    def can_fit_full_sequence(
        self, seq: Sequence, hit: CacheHit, num_new_tokens: int = 0, num_reserved_blocks: int = 0
    ) -> bool:
        return True

    def num_missing_blocks(self, seq: Sequence) -> int:
        return 0

    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> list[int] | None:
        return []
