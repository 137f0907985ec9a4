"""Qwen2-VL's vision tower (Wang et al. 2024): pictures of any size, and videos.

Positions are rotary, by a patch's row and its column. A patch is two frames deep; a picture is its
own second frame. At the end 2 x 2 patches become one vector, so that the patches of such a square
follow one another from the beginning.
(vLLM: Qwen2VisionTransformer, vllm/model_executor/models/qwen2_vl.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.step import RaggedAttention
from minivllm.models import ops
from minivllm.models.encoder import EncoderAttention
from minivllm.models.layers import MLP, LayerNorm
from minivllm.models.linear import Linear
from minivllm.models.multimodal import TowerConfig, ragged_attention
from minivllm.utils.validation import check

_EPS = 1e-6  # of every norm
Grid = tuple[int, int, int]  # frames, rows and columns of an item's patches


class VisionAttention(EncoderAttention):
    """Attention in both directions, with rotary positions."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, cos_sin: torch.Tensor, attention: RaggedAttention
    ) -> torch.Tensor:
        q, k, v = self.qkv_proj(x)
        q, k = ops.rotary_embedding(q, k, cos_sin)
        return self.o_proj(attention(q, k, v, self.scale).flatten(-2))


class VisionBlock(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: TowerConfig):
        super().__init__()
        self.norm1 = LayerNorm(config.hidden_size, config.norm_eps)
        self.attn = VisionAttention(config)
        self.norm2 = LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: torch.Tensor, cos_sin: torch.Tensor, attention: RaggedAttention
    ) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), cos_sin, attention)
        return x + self.mlp(self.norm2(x))


class PatchMerger(nn.Module):
    """From the vectors of neighbouring patches to one of the decoder's."""

    def __init__(self, width: int, num_patches: int, output_size: int):
        super().__init__()
        self.inner = width * num_patches
        self.ln_q = LayerNorm(width, _EPS)
        self.linear_1 = Linear(self.inner, self.inner, bias=True)
        self.linear_2 = Linear(self.inner, output_size, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.ln_q(x).view(-1, self.inner)
        return self.linear_2(F.gelu(self.linear_1(x)))


class Qwen2VisionTransformer(nn.Module):
    """The tower, from patches to a picture's embeddings.

    Args:
        hf: Hugging Face's config of it.

    Raises:
        ValueError: for heads whose numbers cannot be halved twice.
    """

    def __init__(self, hf: Any):
        super().__init__()
        config = TowerConfig(
            hidden_size=hf.embed_dim,
            intermediate_size=int(hf.embed_dim * hf.mlp_ratio),
            num_layers=hf.depth,
            num_heads=hf.num_heads,
            norm_eps=_EPS,
            hidden_act=hf.hidden_act,
        )
        ok = config.head_dim % 4 == 0
        check(ok, "numbers per head of vision_config", config.head_dim, "a multiple of 4")
        self.head_dim = config.head_dim
        self.merge_size = hf.spatial_merge_size
        self.patch_embed = Linear(patch_numbers(hf), hf.embed_dim, bias=False)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(hf.depth))
        self.merger = PatchMerger(hf.embed_dim, self.merge_size**2, hf.hidden_size)

    def forward(
        self, patches: torch.Tensor, grids: list[Grid], backend: AttentionBackend
    ) -> torch.Tensor:
        """Embeddings of some items.

        Args:
            patches: ``[num_patches, numbers]`` of all items, one after the other.
            grids: how the patches of each lie; every frame sees itself alone.
            backend: its attention.

        Returns:
            ``[num_patches / merge_size ** 2, hidden_size]``.
        """
        x = self.patch_embed(patches)
        lengths = [rows * columns for frames, rows, columns in grids for _ in range(frames)]
        attention = ragged_attention(backend, lengths, x.device)
        cos_sin = torch.cat([self._cos_sin(grid) for grid in grids]).to(x.device, x.dtype)
        for block in self.blocks:
            x = block(x, cos_sin, attention)
        return self.merger(x)

    def _cos_sin(self, grid: Grid) -> torch.Tensor:
        """Cosines and sines of an item's patches, ``[num_patches, 2, head_dim]``.

        A quarter of a head turns by the row and a quarter by the column, in each of its halves.
        """
        frames, rows, columns = grid
        size = self.merge_size
        places = torch.from_numpy(np.indices((rows, columns)))
        squares = places.view(2, rows // size, size, columns // size, size).transpose(2, 3)
        half = self.head_dim // 2
        frequencies = 1 / 10000 ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
        angles = squares.reshape(2, -1, 1) * frequencies
        cos, sin = (torch.cat((part[0], part[1]), -1) for part in (angles.cos(), angles.sin()))
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        return table.repeat(frames, 1, 1)


def patch_numbers(hf: Any) -> int:
    """Numbers of a patch: its pixels, and as many of the frame behind it."""
    return hf.in_channels * hf.temporal_patch_size * hf.patch_size**2
