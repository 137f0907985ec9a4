"""Qwen2-Audio's tower (Chu et al. 2024): Whisper's encoder, of which two rows become one.

Two convolutions over time come first; the second one makes a row of two moments. As rows of numbers
they are products, like a picture's patches.
(vLLM: Qwen2AudioEncoder, vllm/model_executor/models/qwen2_audio.py)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.models.layers import Embedding, LayerNorm, get_act_fn
from minivllm.models.linear import Linear
from minivllm.models.multimodal import TowerConfig, TowerLayer, ragged_attention

_KERNEL = 3  # moments that each output of a convolution sees
_EPS = 1e-5  # of every norm


class Qwen2AudioEncoder(nn.Module):
    """The tower.

    Args:
        hf: Hugging Face's config of it.
    """

    def __init__(self, hf: Any):
        super().__init__()
        config = TowerConfig(
            hidden_size=hf.d_model,
            intermediate_size=hf.encoder_ffn_dim,
            num_layers=hf.encoder_layers,
            num_heads=hf.encoder_attention_heads,
            norm_eps=_EPS,
            hidden_act=hf.activation_function,
        )
        self.conv1 = Linear(_KERNEL * hf.num_mel_bins, hf.d_model, bias=True)
        self.conv2 = Linear(_KERNEL * hf.d_model, hf.d_model, bias=True)
        self.act_fn = get_act_fn("gelu")
        self.embed_positions = Embedding(hf.max_source_positions, hf.d_model)
        self.layers = nn.ModuleList(TowerLayer(config) for _ in range(hf.encoder_layers))
        self.layer_norm = LayerNorm(hf.d_model, _EPS)

    def forward(
        self, sounds: list[torch.Tensor], lengths: list[int], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """Vectors of some sounds.

        Args:
            sounds: log-mel frequencies ``[num_mel_bins, moments]`` of each; some moments of silence
                may stand behind it, which the convolutions see and no other row does.
            lengths: moments of each, without silence.
            backend: attention of the rows of each sound.

        Returns:
            ``[num_embeds(length), d_model]`` for each.
        """
        pieces = []
        num_rows = [rows_of(length) for length in lengths]
        for sound, rows in zip(sounds, num_rows, strict=True):
            x = self.act_fn(self.conv1(_windows(sound, stride=1)))
            x = self.act_fn(self.conv2(_windows(x.T, stride=2)))
            pieces.append(x[:rows] + self.embed_positions.weight[:rows])
        x = torch.cat(pieces)
        attention = ragged_attention(backend, num_rows, x.device)
        for layer in self.layers:
            x = layer(x, attention)
        found = []
        for piece in x.split(num_rows):
            pairs = piece[: len(piece) // 2 * 2].view(-1, 2, piece.shape[1])
            found.append(self.layer_norm(pairs.mean(1)))
        return found


def rows_of(length: int) -> int:
    """Rows that the convolutions make of so many moments."""
    return (length - 1) // 2 + 1


def num_embeds(length: int) -> int:
    """Embeddings of a sound of so many moments."""
    return rows_of(length) // 2


def _windows(x: torch.Tensor, stride: int) -> torch.Tensor:
    """What each output of a convolution sees of ``[channels, moments]``, as rows of numbers."""
    windows = F.pad(x, (1, 1)).unfold(1, _KERNEL, stride)  # [channels, outputs, _KERNEL]
    return windows.transpose(0, 1).flatten(1)
