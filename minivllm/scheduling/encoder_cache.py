"""EncoderCacheManager: which items' encoder outputs are kept, and which sequences need them still.

An item is a picture, for example. Its output is kept by its identifier, so that several requests
can share it. An entry that no sequence refers to stays, to be found again, until its room is
needed. All sizes are in embeddings. (vLLM: vllm/v1/core/encoder_cache_manager.py)
(notebook 25)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from minivllm.request import Sequence
from minivllm.trace import Trace
from minivllm.trace.records import ItemEvicted, ItemFreed, ItemReferred


class EncoderCacheManager:
    """Entries of the encoder cache, the sequences that refer to each, and the order of eviction.

    A method takes a sequence and an ``input_id``, the item's index in its request's
    ``mm_features``.

    Args:
        cache_size: the most embeddings that are kept.
        trace: listens, if given.

    Attributes:
        num_free_slots: embeddings for which there is room.
        num_freeable_slots: those, and the ones of entries that may be evicted.
        cached: ids of the sequences that refer to each entry, by identifier.
        freeable: entries that none refers to, with their sizes; the next victim is first.
        freed: identifiers evicted since ``get_freed_mm_hashes`` was called.
    """

    def __init__(self, cache_size: int, trace: Trace | None = None):
        self.cache_size = cache_size
        self.trace = trace
        self.cached: dict[str, set[str]] = {}
        self.freeable: OrderedDict[str, int] = OrderedDict()
        self.freed: list[str] = []
        self.num_free_slots = self.num_freeable_slots = cache_size
        self._sizes: dict[str, int] = {}  # of all entries
        # of each sequence: the items that it refers to. One identifier may be that of several.
        self._held: dict[str, dict[int, str]] = {}

    def num_embeds_of(self, identifier: str, default: int) -> int:
        """Size of an entry, or the default if there is none."""
        return self._sizes.get(identifier, default)

    def check_and_update_cache(self, seq: Sequence, input_id: int) -> bool:
        """Return True if an item has an entry, to which the sequence refers from now on."""
        found = seq.request.mm_features[input_id].identifier in self.cached
        if found:
            self._refer(seq, input_id)
        return found

    def can_allocate(
        self,
        seq: Sequence,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        """Return True if an item can be encoded and kept, once entries are evicted to make room.

        Evictions stay, whatever becomes of the item.

        Args:
            encoder_compute_budget: embeddings that the step may still compute.
            num_embeds_to_schedule: those that are promised room, and have no entry yet.
        """
        num_embeds = seq.request.mm_features[input_id].mm_position.num_embeds
        needed = num_embeds_to_schedule + num_embeds
        if num_embeds > encoder_compute_budget or needed > self.num_freeable_slots:
            return False
        while needed > self.num_free_slots:
            identifier, size = self.freeable.popitem(last=False)
            del self.cached[identifier]
            del self._sizes[identifier]
            self.num_free_slots += size
            self.freed.append(identifier)
            if self.trace is not None:
                self.trace.record(ItemEvicted, identifier)
        return True

    def allocate(self, seq: Sequence, input_id: int) -> None:
        """Make an item's entry, unless there is one, and let the sequence refer to it."""
        feature = seq.request.mm_features[input_id]
        if feature.identifier not in self.cached:
            size = feature.mm_position.num_embeds
            self.cached[feature.identifier] = set()
            self._sizes[feature.identifier] = size
            self.num_free_slots -= size
            self.num_freeable_slots -= size
        self._refer(seq, input_id)

    def get_cached_input_ids(self, seq: Sequence) -> list[int]:
        """The items that a sequence refers to, by their order in the prompt."""
        return sorted(self._held.get(seq.seq_id, ()))

    def free_encoder_input(self, seq: Sequence, input_id: int) -> None:
        """Drop a sequence's reference to an item; the last one lets its entry be evicted.

        An item that the sequence has at several places is needed until the last of them is dropped.
        """
        held = self._held[seq.seq_id]
        identifier = held.pop(input_id)
        if not held:
            del self._held[seq.seq_id]
        if identifier in held.values():
            return
        holders = self.cached[identifier]
        holders.remove(seq.seq_id)
        if not holders:
            self.freeable[identifier] = self._sizes[identifier]
            self.num_freeable_slots += self._sizes[identifier]
        if self.trace is not None:
            self.trace.record(ItemFreed, seq.seq_id, identifier)

    def free(self, seq: Sequence) -> None:
        """Drop all references of a sequence. One that has none is no error."""
        for input_id in self.get_cached_input_ids(seq):
            self.free_encoder_input(seq, input_id)

    def get_freed_mm_hashes(self) -> list[str]:
        """Take the identifiers whose outputs are to be forgotten: evicted, and not made again."""
        freed = [identifier for identifier in self.freed if identifier not in self.cached]
        self.freed = []
        return freed

    def reset(self) -> None:
        """Empty the cache, after a step that has failed: what the runner has is not known."""
        self.cached.clear()
        self.freeable.clear()
        self.freed.clear()
        self._sizes.clear()
        self._held.clear()
        self.num_free_slots = self.num_freeable_slots = self.cache_size

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` unless sizes, references and the order of eviction agree."""
        sizes = self._sizes
        assert sizes.keys() == self.cached.keys()
        assert self.num_free_slots == self.cache_size - sum(sizes.values()) >= 0
        unused = {identifier: sizes[identifier] for identifier in self.freeable}
        assert self.freeable == unused, "an entry that may be evicted has another size"
        assert self.num_freeable_slots == self.num_free_slots + sum(unused.values())
        assert unused.keys() == {name for name, holders in self.cached.items() if not holders}
        held: dict[str, set[str]] = {identifier: set() for identifier in self.cached}
        for seq_id, items in self._held.items():
            for identifier in items.values():
                held[identifier].add(seq_id)
        assert held == self.cached, "references do not agree"
        assert self._held.keys() <= {seq.seq_id for seq in running}, "only running ones refer"

    def _refer(self, seq: Sequence, input_id: int) -> None:
        identifier = seq.request.mm_features[input_id].identifier
        if identifier in self.freeable:
            self.num_freeable_slots -= self.freeable.pop(identifier)
        self._held.setdefault(seq.seq_id, {})[input_id] = identifier
        holders = self.cached[identifier]
        if seq.seq_id not in holders:
            holders.add(seq.seq_id)
            if self.trace is not None:
                self.trace.record(ItemReferred, seq.seq_id, identifier, self._sizes[identifier])
