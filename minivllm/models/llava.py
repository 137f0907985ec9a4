"""LLaVA 1.5 (Liu et al. 2023): a vision tower, a projector of two layers, any decoder we have.

Every picture has the same size, and as many embeddings as it has patches.
(vLLM: vllm/model_executor/models/llava.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.models.language_half import language_half, placeholder_id
from minivllm.models.layers import get_act_fn
from minivllm.models.linear import Linear
from minivllm.models.model_config import ModelConfig, check_sizes
from minivllm.models.multimodal import Item, MultiModalEncoder
from minivllm.models.vision.clip import CLIPVisionModel
from minivllm.models.vision.siglip import SiglipVisionModel
from minivllm.models.vision.tower import VisionTower, num_image_tokens
from minivllm.utils.validation import check, is_int

TOWERS: dict[str, type[VisionTower]] = {
    "clip_vision_model": CLIPVisionModel,
    "siglip_vision_model": SiglipVisionModel,
}


class LlavaMultiModalProjector(nn.Module):
    """From the tower's vectors to the decoder's."""

    def __init__(self, hf: Any, input_size: int):
        super().__init__()
        size = hf.text_config.hidden_size
        bias = getattr(hf, "multimodal_projector_bias", True)
        self.linear_1 = Linear(input_size, size, bias)
        self.act_fn = get_act_fn(hf.projector_hidden_act)
        self.linear_2 = Linear(size, size, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_2(self.act_fn(self.linear_1(x)))


class LlavaForConditionalGeneration(MultiModalEncoder):
    """The tower's hidden states behind one or more layers become a picture's embeddings."""

    ignored_tensors = ("embeddings.position_ids",)
    unused_prefixes: tuple[str, ...] = ("vision_tower.post_layernorm.", "vision_tower.head.")
    checkpoint_names = {  # noqa: RUF012
        "vision_tower.layers": "vision_tower.encoder.layers",
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        hf = config.hf_config
        vision = hf.vision_config
        self.feature_layers = feature_layers(hf)
        self.drops_first_row = hf.vision_feature_select_strategy == "default"
        num_layers = max(self.feature_layers)
        later = range(num_layers, vision.num_hidden_layers)
        self.unused_prefixes += tuple(f"vision_tower.encoder.layers.{i}." for i in later)
        self.vision_tower = TOWERS[vision.model_type](vision, num_layers)
        width = vision.hidden_size * len(self.feature_layers)
        self.multi_modal_projector = LlavaMultiModalProjector(hf, width)

    @classmethod
    def read_config(cls, hf: Any) -> dict[str, Any]:
        """See ``MultiModalEncoder.read_config``.

        Raises:
            ValueError: for a tower, a decoder or layers of it that we do not have.
        """
        kind = hf.vision_config.model_type
        check(kind in TOWERS, "vision_config.model_type", kind, f"one of {', '.join(TOWERS)}")
        check_sizes(hf.vision_config, "vision_config.")
        feature_layers(hf)
        get_act_fn(hf.projector_hidden_act)
        strategy = hf.vision_feature_select_strategy
        ok = strategy in ("default", "full")
        check(ok, "vision_feature_select_strategy", strategy, "'default' or 'full'")
        placeholder = placeholder_id(hf, "image_token_id", "image_token_index")
        return language_half(hf) | {
            "multimodal_architecture": cls.__name__,
            "placeholder_ids": frozenset([placeholder]),
        }

    def encode(
        self, modality: str, items: list[Item], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """See ``MultiModalEncoder.encode``: pictures as ``pixel_values``, all of one size."""
        like = self.vision_tower.embeddings.position_embedding.weight
        pixels = np.stack([item["pixel_values"] for item in items])
        pixel_values = torch.from_numpy(pixels).to(like.device, like.dtype)
        states = self.vision_tower(pixel_values, self.feature_layers, backend)
        features = states[0] if len(states) == 1 else torch.cat(states, -1)
        if self.drops_first_row:
            features = features[:, 1:]
        rows = self.multi_modal_projector(features.reshape(-1, features.shape[-1]))
        return list(rows.view(len(items), features.shape[1], -1))

    def largest_item(self, max_embeds: int) -> tuple[str, Item, int]:
        """See ``MultiModalEncoder.largest_item``: all pictures are equally large."""
        zeros = np.zeros(self.vision_tower.image_shape, np.float32)
        return "image", {"pixel_values": zeros}, num_image_tokens(self.config.hf_config)


def feature_layers(hf: Any) -> list[int]:
    """Numbers of the layers behind which hidden states are taken; 0: before the first one.

    Raises:
        ValueError: if there is no such layer.
    """
    num_layers = hf.vision_config.num_hidden_layers
    given = hf.vision_feature_layer
    numbers = [given] if isinstance(given, int) else given
    ok = isinstance(numbers, (list, tuple)) and len(numbers) > 0
    ok = ok and all(is_int(n) and -num_layers - 1 <= n <= num_layers for n in numbers)
    allowed = f"integers from {-num_layers - 1} to {num_layers}, the last layer"
    check(ok, "vision_feature_layer", given, allowed)
    return [n % (num_layers + 1) for n in numbers]
