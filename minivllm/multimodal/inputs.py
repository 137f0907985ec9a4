"""MultiModalFeatureSpec: one item of a prompt, such as a picture, and where its placeholders are.

(vLLM: vllm/multimodal/inputs.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class PlaceholderRange:
    """Range of an item's placeholders in a prompt, and which of them an embedding replaces.

    Args:
        offset: position of the first placeholder in the prompt.
        length: number of placeholders.
        is_embed: for each of them, True if it gets an embedding of the item; the others, such as
            the breaks between a picture's rows, keep their token's own. None: all of them do.
    """

    offset: int
    length: int
    is_embed: tuple[bool, ...] | None = None

    @property
    def end(self) -> int:
        """Position behind the last placeholder."""
        return self.offset + self.length

    @cached_property
    def _num_embeds_before(self) -> tuple[int, ...] | None:
        """Embeddings among the first 0, 1, ... placeholders; None if each one is."""
        return None if self.is_embed is None else (0, *accumulate(self.is_embed))

    @property
    def num_embeds(self) -> int:
        """Number of rows of the encoder's output."""
        before = self._num_embeds_before
        return self.length if before is None else before[-1]

    def embeds_in(self, start: int, end: int) -> range:
        """Rows of the encoder's output for the prompt's positions ``start`` to ``end - 1``."""
        first = min(max(start - self.offset, 0), self.length)
        last = min(max(end - self.offset, first), self.length)
        before = self._num_embeds_before
        return range(first, last) if before is None else range(before[first], before[last])


@dataclass
class MultiModalFeatureSpec:
    """An item of a request: its processed data, its identity, and its place in the prompt.

    Args:
        data: what the encoder reads, by the name of its argument; None where only its place counts,
            as in a simulation.
        modality: "image", "video" or "audio".
        identifier: of the item's content. It names its embeddings in the encoder cache, and is a
            part of the block hashes of its placeholders.
        mm_position: where its placeholders are.
        mm_hash: of the processed data, in the processor cache.
    """

    data: dict[str, np.ndarray] | None
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None
