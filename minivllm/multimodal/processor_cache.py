"""ProcessorCache: processed items by their hash, the least recently used given up first.

One process has one front end, so one cache is enough. (vLLM has one for the sender and one for the
engine: vllm/multimodal/cache/)
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from minivllm.multimodal.processing import ProcessedItem


class ProcessorCache:
    """Cache of processed items, bounded by their bytes. Threads may share it.

    Args:
        capacity: in bytes; 0 keeps nothing.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.num_bytes = 0
        self.num_hits = 0
        self.num_queries = 0
        self._items: OrderedDict[str, ProcessedItem] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: str) -> ProcessedItem | None:
        """An item, which is now the most recently used; None if it is not there."""
        with self._lock:
            self.num_queries += 1
            item = self._items.get(key)
            if item is not None:
                self.num_hits += 1
                self._items.move_to_end(key)
            return item

    def put(self, key: str, item: ProcessedItem) -> None:
        """Keep an item, unless it alone is larger than the cache."""
        if item.num_bytes > self.capacity:
            return
        with self._lock:
            if (old := self._items.pop(key, None)) is not None:
                self.num_bytes -= old.num_bytes
            self._items[key] = item
            self.num_bytes += item.num_bytes
            while self.num_bytes > self.capacity:
                _, given_up = self._items.popitem(last=False)
                self.num_bytes -= given_up.num_bytes
