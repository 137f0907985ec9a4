"""Qwen2-VL: pictures of any size and videos before Qwen2, whose positions have three parts.

(vLLM: vllm/model_executor/models/qwen2_vl.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.models.language_half import language_half, placeholder_id
from minivllm.models.model_config import ModelConfig, check_sizes, require
from minivllm.models.mrope import Grid, MRopePositions
from minivllm.models.multimodal import Item, MultiModalEncoder
from minivllm.models.qwen2 import Qwen2ForCausalLM
from minivllm.models.vision.qwen2_vl import Qwen2VisionTransformer, patch_numbers
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.utils.validation import check, is_int


class Qwen2VLForConditionalGeneration(MultiModalEncoder):
    """A picture has as many embeddings as its size asks for; a video is one item."""

    checkpoint_prefixes = ("visual.",)
    fused_in_checkpoint = True
    checkpoint_names = {  # noqa: RUF012
        "visual.patch_embed": "visual.patch_embed.proj",
        "attn.qkv_proj": "attn.qkv",
        "attn.o_proj": "attn.proj",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
        "merger.linear_1": "merger.mlp.0",
        "merger.linear_2": "merger.mlp.2",
    }

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.visual = Qwen2VisionTransformer(config.hf_config.vision_config)

    @classmethod
    def read_config(cls, hf: Any) -> dict[str, Any]:
        """See ``MultiModalEncoder.read_config``.

        Raises:
            ValueError: for sections that are not a head's, or another size of merged squares.
        """
        check_sizes(hf.vision_config, "vision_config.")
        require(hf.vision_config, spatial_merge_size=2, temporal_patch_size=2)
        found = language_half(hf, decoder=Qwen2ForCausalLM)
        rope = found["rope"]
        text = hf.get_text_config()
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        sections = rope.get("mrope_section")
        ok = isinstance(sections, (list, tuple)) and len(sections) == 3
        ok = ok and all(is_int(n, 0) for n in sections) and 2 * sum(sections) == head_dim
        allowed = f"three integers whose sum is {head_dim // 2}, half a head"
        check(ok, "mrope_section in config.json", sections, allowed)
        names = "image_token_id", "video_token_id"
        return found | {
            "multimodal_architecture": cls.__name__,
            "placeholder_ids": frozenset(placeholder_id(hf, name) for name in names),
        }

    def encode(
        self, modality: str, items: list[Item], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """See ``MultiModalEncoder.encode``: patches as ``pixel_values``, and their ``grid_thw``."""
        like = self.visual.merger.ln_q.weight
        patches = np.concatenate([item["pixel_values"] for item in items])
        rows = torch.from_numpy(patches).to(like.device, like.dtype)
        grids = [(int(t), int(h), int(w)) for t, h, w in (item["grid_thw"] for item in items)]
        embeddings = self.visual(rows, grids, backend)
        return list(embeddings.split([t * h * w // 4 for t, h, w in grids]))

    def largest_item(self, max_embeds: int) -> tuple[str, Item, int]:
        """See ``MultiModalEncoder.largest_item``: a picture that is as square as it can be."""
        side = max(1, int(max_embeds**0.5))
        grid = np.array([1, 2 * side, 2 * (max_embeds // side)])
        numbers = patch_numbers(self.config.hf_config.vision_config)
        patches = np.zeros((int(grid.prod()), numbers), np.float32)
        return "image", {"pixel_values": patches, "grid_thw": grid}, len(patches) // 4

    def positions(
        self, features: list[MultiModalFeatureSpec], num_prompt_tokens: int
    ) -> MRopePositions | None:
        """See ``MultiModalEncoder.positions``."""
        grids = []
        for feature in features:
            assert feature.data is not None, "it comes with its request"
            frames, rows, columns = (int(n) for n in feature.data["grid_thw"])
            offset = feature.mm_position.offset
            grids.append(Grid(offset, frames, rows // 2, columns // 2))
        return MRopePositions(num_prompt_tokens, grids) if grids else None
