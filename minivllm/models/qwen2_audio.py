"""Qwen2-Audio: sounds before Qwen2, as many embeddings as they last.

(vLLM: vllm/model_executor/models/qwen2_audio.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.models.audio.qwen2_audio import Qwen2AudioEncoder, num_embeds
from minivllm.models.language_half import language_half, placeholder_id
from minivllm.models.linear import Linear
from minivllm.models.model_config import ModelConfig, check_sizes, require
from minivllm.models.multimodal import Item, MultiModalEncoder, Weights


class Qwen2AudioMultiModalProjector(nn.Module):
    """From the tower's vectors to the decoder's."""

    def __init__(self, input_size: int, output_size: int):
        super().__init__()
        self.linear = Linear(input_size, output_size, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Qwen2AudioForConditionalGeneration(MultiModalEncoder):
    """A sound's embeddings follow one another in time, 25 of them a second."""

    checkpoint_prefixes = ("audio_tower.", "multi_modal_projector.")
    checkpoint_names = {  # noqa: RUF012
        "self_attn.o_proj": "self_attn.out_proj",
        "layer_norm1": "self_attn_layer_norm",
        "layer_norm2": "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
    }

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        audio = config.hf_config.audio_config
        self.audio_tower = Qwen2AudioEncoder(audio)
        self.multi_modal_projector = Qwen2AudioMultiModalProjector(
            audio.d_model, config.hidden_size
        )

    @classmethod
    def read_config(cls, hf: Any) -> dict[str, Any]:
        """See ``MultiModalEncoder.read_config``."""
        check_sizes(hf.audio_config, "audio_config.")
        require(hf.audio_config, scale_embedding=False)
        return language_half(hf) | {
            "multimodal_architecture": cls.__name__,
            "placeholder_ids": frozenset(
                [placeholder_id(hf, "audio_token_id", "audio_token_index")]
            ),
        }

    def _own(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """See ``MultiModalEncoder``; keys have no bias there, and a bias of zeros here."""
        for name, tensor in super()._own(weights):
            yield name, tensor
            if name.endswith("self_attn.k_proj.weight"):
                yield f"{name.removesuffix('weight')}bias", tensor.new_zeros(len(tensor))

    def encode(
        self, modality: str, items: list[Item], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """See ``MultiModalEncoder.encode``: ``input_features`` and their ``feature_length``."""
        like = self.audio_tower.layer_norm.weight
        sounds = [
            torch.from_numpy(item["input_features"]).to(like.device, like.dtype) for item in items
        ]
        lengths = [int(item["feature_length"]) for item in items]
        vectors = self.audio_tower(sounds, lengths, backend)
        rows = self.multi_modal_projector(torch.cat(vectors))
        return list(rows.split([len(piece) for piece in vectors]))

    def largest_item(self, max_embeds: int) -> tuple[str, Item, int]:
        """See ``MultiModalEncoder.largest_item``: a sound as long as the tower knows."""
        audio = self.config.hf_config.audio_config
        length = 2 * audio.max_source_positions
        item = {
            "input_features": np.zeros((audio.num_mel_bins, length), np.float32),
            "feature_length": np.array(length),
        }
        return "audio", item, num_embeds(length)
