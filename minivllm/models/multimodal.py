"""MultiModalEncoder: what makes embeddings of pictures or sound, beside an ordinary decoder.

A checkpoint has both in one. It is split by the names of its tensors before either is loaded: what
changes a decoder (shares of ranks, adapters, quantized weights, compiled layers) meets one that
reads text. (vLLM: SupportsMultiModal, vllm/model_executor/models/interfaces.py)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.step import RaggedAttention
from minivllm.models.checkpoint import CheckpointMixin
from minivllm.models.encoder import EncoderAttention
from minivllm.models.layers import MLP, LayerNorm
from minivllm.models.model_config import ModelConfig
from minivllm.models.mrope import MRopePositions
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.utils.validation import check

Weights = Iterable[tuple[str, torch.Tensor]]
Item = Mapping[str, np.ndarray]  # a picture or a sound, as its processor has made it


@dataclass(frozen=True)
class TowerConfig:
    """Sizes of a tower: a ``BlockSizes`` without grouped heads, with biases everywhere.

    Raises:
        ValueError: if its heads do not divide its width.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    hidden_act: str
    qkv_bias: bool = True
    o_bias: bool = True
    mlp_bias: bool = True

    def __post_init__(self):
        ok = self.hidden_size % self.num_heads == 0
        allowed = f"a divisor of the tower's width, {self.hidden_size}"
        check(ok, "attention heads of a tower in config.json", self.num_heads, allowed)

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class TowerLayer(nn.Module):
    """Attention in both directions and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: TowerConfig):
        super().__init__()
        self.layer_norm1 = LayerNorm(config.hidden_size, config.norm_eps)
        self.self_attn = EncoderAttention(config)
        self.layer_norm2 = LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor, attention: RaggedAttention) -> torch.Tensor:
        """``[rows, hidden_size]`` of all items, one after the other."""
        x = x + self.self_attn(self.layer_norm1(x), attention)
        return x + self.mlp(self.layer_norm2(x))


def ragged_attention(
    backend: AttentionBackend, lengths: list[int], device: torch.device
) -> RaggedAttention:
    """Make the attention of a batch of items, whose rows see those of their own item alone.

    Args:
        backend: attends.
        lengths: rows of each item.
        device: where they are.
    """
    metadata = AttentionMetadata.build(
        query_lens=lengths,
        seq_lens=lengths,
        block_tables=[[] for _ in lengths],
        slot_mapping=[],
        device=device,
    )
    return RaggedAttention(backend, metadata)


class MultiModalEncoder(CheckpointMixin):
    """Towers and projector of a model. Its subclasses are named as a config.json names the whole.

    Args:
        config: of the whole model.
    """

    # beginnings of its tensors' names in a checkpoint
    checkpoint_prefixes: tuple[str, ...] = ("vision_tower.", "multi_modal_projector.")
    unused_prefixes: tuple[str, ...] = ()  # those among them that it does not need
    pooler = None

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config

    @classmethod
    @abstractmethod
    def read_config(cls, hf: Any) -> dict[str, Any]:
        """The ``ModelConfig`` fields of the whole model, those of its decoder's family included."""

    @abstractmethod
    def encode(
        self, modality: str, items: list[Item], backend: AttentionBackend
    ) -> list[torch.Tensor]:
        """Make the embeddings of some items of one modality, ``[n, hidden_size]`` each.

        Args:
            modality: "image", ...
            items: as the model's processor has made them.
            backend: its attention.
        """

    @abstractmethod
    def largest_item(self, max_embeds: int) -> tuple[str, Item, int]:
        """An item with the most embeddings: its modality, its arrays, how many it has.

        Args:
            max_embeds: that a prompt and a step have room for, where sizes differ.
        """

    def positions(
        self, features: list[MultiModalFeatureSpec], num_prompt_tokens: int
    ) -> MRopePositions | None:
        """Positions of a prompt's tokens, and of those behind it; None: their places.

        Args:
            features: of the prompt, by offset.
            num_prompt_tokens: how long it is.
        """
        return None

    def load_weights(self, weights: Weights) -> None:
        """Fill parameters from a whole checkpoint, as ``CheckpointMixin`` does."""
        super().load_weights(self._own(weights))

    def _own(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """The encoder's tensors among those of a checkpoint; others may not even be read."""
        for name, tensor in weights:
            name = plain_name(name)
            is_own = name.startswith(self.checkpoint_prefixes)
            if is_own and not name.startswith(self.unused_prefixes):
                yield self.convert(name, tensor)

    def convert(self, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        """Lay a checkpoint's tensor out as its parameter here is.

        A convolution is a product here: what each output sees is one row of numbers.
        """
        return name, tensor.flatten(1) if tensor.dim() > 2 else tensor

    @classmethod
    def language_weights(cls, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """The decoder's tensors of a checkpoint, by the names that a decoder's own would have."""
        for name, tensor in weights:
            name = plain_name(name)
            if not name.startswith(cls.checkpoint_prefixes):
                yield name, tensor


def plain_name(name: str) -> str:
    """A tensor's or a layer's name without the prefixes that stand for a half of a composite.

    Releases of transformers put ``model.`` before or behind them. A decoder's name then lacks its
    own prefix, as in checkpoints without a head.
    """
    for half in ("language_model.", "vision_tower.", "audio_tower.", "visual.", "multi_modal_"):
        if name.startswith(f"model.{half}"):
            name = name.removeprefix("model.")
    if name.startswith("language_model."):
        return name.removeprefix("language_model.").removeprefix("model.")
    return name.replace("vision_tower.vision_model.", "vision_tower.")
