"""VisionTower: a transformer over the patches of pictures that all have the same size.

What CLIP and SigLIP share. A patch's pixels are a row of numbers, and the convolution that
checkpoints have is a product of these rows. Every row of a picture sees all the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.models.layers import Embedding
from minivllm.models.linear import Linear
from minivllm.models.multimodal import TowerConfig, TowerLayer, ragged_attention
from minivllm.utils.validation import check


class PatchEmbeddings(nn.Module):
    """Vectors of patches, with those of their places.

    Args:
        hf: Hugging Face's config of the tower.
        has_class: True for a row that stands for the whole picture, before the patches'.
        bias: whether the product has one.
    """

    def __init__(self, hf: Any, has_class: bool, bias: bool):
        super().__init__()
        self.patch_size = hf.patch_size
        self.class_embedding: nn.Parameter | None = None
        if has_class:
            self.class_embedding = nn.Parameter(torch.empty(hf.hidden_size))
        numbers = hf.num_channels * hf.patch_size**2
        self.patch_embedding = Linear(numbers, hf.hidden_size, bias=bias)
        self.num_rows = (hf.image_size // hf.patch_size) ** 2 + has_class
        self.position_embedding = Embedding(self.num_rows, hf.hidden_size)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """``[n, channels, height, width]`` to ``[n, num_rows, hidden_size]``."""
        size = self.patch_size
        n, channels, height, width = pixel_values.shape
        cut = pixel_values.view(n, channels, height // size, size, width // size, size)
        patches = cut.permute((0, 2, 4, 1, 3, 5)).reshape(-1, channels * size * size)
        x = self.patch_embedding(patches).view(n, -1, self.patch_embedding.output_size)
        if self.class_embedding is not None:
            x = torch.cat((self.class_embedding.expand(n, 1, -1), x), 1)
        return x + self.position_embedding.weight


class VisionTower(nn.Module):
    """A tower as far as its output is asked for: later layers are not built.

    Args:
        hf: Hugging Face's config of it.
        num_layers: how many to build.

    Raises:
        ValueError: if a picture cannot be cut into patches.
    """

    has_class: bool  # see ``PatchEmbeddings``
    has_patch_bias: bool

    def __init__(self, hf: Any, num_layers: int):
        super().__init__()
        ok = hf.image_size % hf.patch_size == 0
        allowed = f"a divisor of image_size, {hf.image_size}"
        check(ok, "vision_config.patch_size", hf.patch_size, allowed)
        config = TowerConfig(
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            num_layers=num_layers,
            num_heads=hf.num_attention_heads,
            norm_eps=hf.layer_norm_eps,
            hidden_act=hf.hidden_act,
        )
        self.image_shape = hf.num_channels, hf.image_size, hf.image_size
        self.embeddings = PatchEmbeddings(hf, self.has_class, self.has_patch_bias)
        self.layers = nn.ModuleList(TowerLayer(config) for _ in range(num_layers))

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """``[n, channels, height, width]`` to what the first layer reads."""
        return self.embeddings(pixel_values)

    def forward(
        self, pixel_values: torch.Tensor, wanted: list[int], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """Hidden states behind some layers.

        Args:
            pixel_values: ``[n, channels, height, width]``, as a processor has scaled them.
            wanted: numbers of layers; 0 is what the first one reads.
            backend: attention of the rows of each picture.

        Returns:
            ``[n, num_rows, hidden_size]`` for each of ``wanted``.
        """
        x = self.embed(pixel_values)
        n, num_rows, size = x.shape
        attention = ragged_attention(backend, [num_rows] * n, x.device)
        states = [x]
        x = x.view(-1, size)
        for layer in self.layers:
            x = layer(x, attention)
            states.append(x.view(n, num_rows, size))
        return [states[number] for number in wanted]


def num_image_tokens(hf: Any) -> int:
    """Embeddings of a picture, by the whole config of a model with such a tower."""
    vision = hf.vision_config
    has_class = vision.model_type == "clip_vision_model"
    num_rows = (vision.image_size // vision.patch_size) ** 2 + has_class
    return num_rows - (hf.vision_feature_select_strategy == "default")
