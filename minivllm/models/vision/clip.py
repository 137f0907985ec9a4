"""CLIP's vision tower (Radford et al. 2021): a row for the whole picture comes first.

(vLLM: vllm/model_executor/models/clip.py)
"""

from __future__ import annotations

from typing import Any

import torch

from minivllm.models.layers import LayerNorm
from minivllm.models.vision.tower import VisionTower


class CLIPVisionModel(VisionTower):
    """A norm stands before the first layer; its name is misspelt in every checkpoint."""

    has_class = True
    has_patch_bias = False

    def __init__(self, hf: Any, num_layers: int):
        super().__init__(hf, num_layers)
        self.pre_layrnorm = LayerNorm(hf.hidden_size, hf.layer_norm_eps)

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.pre_layrnorm(super().embed(pixel_values))
