"""EncoderRunner: runs the towers on a plan's items, and keeps what they put out.

The scheduler decides which items are encoded in a step and which outputs are forgotten. An output
is kept by its item's identifier, so that requests with the same picture share it.
(vLLM: vllm/v1/worker/gpu/mm/encoder_runner.py, encoder_cache.py)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.models.multimodal import Item, MultiModalEncoder
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.scheduling.output import SchedulerOutput
from minivllm.worker.input_batch import CachedRequestState


class Placeholders(NamedTuple):
    """Rows of a step's flat batch that are placeholders, and what stands in their places."""

    rows: list[int]
    embeddings: torch.Tensor  # [len(rows), hidden_size]
    axes: list[np.ndarray]  # pieces of their positions, [3, n]; none, if they are plain ones


class EncoderRunner:
    """The towers of a model, and the encoder cache.

    Args:
        encoder: makes embeddings.
        attention: its attention.
    """

    def __init__(self, encoder: MultiModalEncoder, attention: AttentionBackend):
        self.encoder = encoder
        self.attention = attention
        self.encoder_cache: dict[str, torch.Tensor] = {}  # by identifier, [n, hidden_size]
        self.num_encoded = 0  # items that the towers have run on

    def forget(self, plan: SchedulerOutput) -> None:
        """Forget outputs, before anything else in a step."""
        if plan.reset:
            self.encoder_cache.clear()
        for identifier in plan.free_encoder_mm_hashes:
            self.encoder_cache.pop(identifier, None)

    def encode(self, plan: SchedulerOutput, states: Mapping[str, CachedRequestState]) -> None:
        """Run the towers on the plan's items, once for those of each modality.

        Raises:
            RuntimeError: if an item has another number of embeddings than placeholders for them.
        """
        batches: dict[str, dict[str, MultiModalFeatureSpec]] = defaultdict(dict)
        for seq_id, indices in plan.scheduled_encoder_inputs.items():
            for index in indices:
                feature = states[seq_id].mm_features[index]
                batches[feature.modality][feature.identifier] = feature
        for modality, features in batches.items():
            items: list[Item] = [feature.data or {} for feature in features.values()]
            outputs = self.encoder.encode(modality, items, self.attention)
            self.num_encoded += len(items)
            for feature, output in zip(features.values(), outputs, strict=True):
                wanted = feature.mm_position.num_embeds
                if len(output) != wanted:
                    raise RuntimeError(
                        f"an item ({modality}) has {len(output)} embeddings, but {wanted} "
                        "placeholders in its prompt."
                    )
                self.encoder_cache[feature.identifier] = output

    def gather(
        self, plan: SchedulerOutput, states: Mapping[str, CachedRequestState]
    ) -> Placeholders | None:
        """Gather the embeddings of a step's chunks; None if no row is a placeholder.

        Raises:
            RuntimeError: if an output is not there that the scheduler counts on.
        """
        rows: list[int] = []
        pieces: list[torch.Tensor] = []
        axes: list[np.ndarray] = []
        end = 0
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            begin = end
            end += num_new
            start = plan.num_computed_tokens[seq_id]
            positions = states[seq_id].positions
            for feature in states[seq_id].mm_features:
                place = feature.mm_position
                if place.offset >= start + num_new or place.end <= start:
                    continue
                found = place.embeds_in(start, start + num_new)
                if not found:
                    continue
                output = self.encoder_cache.get(feature.identifier)
                if output is None:
                    raise RuntimeError(
                        f"encoder cache miss: {feature.identifier!r} of {seq_id!r} is not encoded."
                    )
                pieces.append(output[found.start : found.stop])
                first = max(place.offset, start)
                last = min(place.end, start + num_new)
                if positions is not None:  # such items have no breaks
                    axes.append(positions.axes(first, last - first))
                is_embed = place.is_embed
                rows += [
                    begin + position - start
                    for position in range(first, last)
                    if is_embed is None or is_embed[position - place.offset]
                ]
        return Placeholders(rows, torch.cat(pieces), axes) if rows else None
