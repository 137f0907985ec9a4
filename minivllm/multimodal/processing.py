"""MultiModalProcessor: turns an item of a prompt into arrays for its encoder, and into tokens.

(vLLM: vllm/multimodal/processing/processor.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ProcessedItem:
    """One picture, sound or video, ready for the encoder.

    Args:
        data: the encoder's input, arrays by name.
        replacement: the tokens in a prompt that stand in place of its one placeholder.
        is_embed: which of them get a row of the encoder's output; None: all.
    """

    data: dict[str, np.ndarray]
    replacement: list[int]
    is_embed: tuple[bool, ...] | None = None

    @property
    def num_embeds(self) -> int:
        """Rows of the encoder's output."""
        return len(self.replacement) if self.is_embed is None else sum(self.is_embed)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes: of its arrays, and 8 bytes for each token."""
        return sum(array.nbytes for array in self.data.values()) + 8 * len(self.replacement)


class MultiModalProcessor(Protocol):
    """Processor of a model's items; ``models/processors.py`` makes it.

    Attributes:
        placeholders: by modality, the text that stands for an item in a prompt.
        placeholder_ids: by modality, the token of that text.
        max_embeddings: by modality, the most rows of one item's embeddings.
    """

    placeholders: Mapping[str, str]
    placeholder_ids: Mapping[str, int]
    max_embeddings: Mapping[str, int]

    def process(self, modality: str, item: Any, **mm_processor_kwargs) -> ProcessedItem:
        """Process one item.

        Args:
            modality: one of ``placeholders``.
            item: of an image a picture of PIL or an array ``[height, width, channels]`` of bytes.
            mm_processor_kwargs: options of the model's own processor.

        Raises:
            ValueError: for an item or an option that cannot be.
        """
        ...
