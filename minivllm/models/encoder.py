"""One encoder for BERT and its kin: each token sees all the others, and nothing is kept.

A prompt is read in one step, so that K and V of a layer are used once and forgotten: no slot, no
block, no cache. Norms come behind the residual sums, where a decoder has them before its parts.
What a family does differently is said in a file of its own (``bert.py``, ``roberta.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from minivllm.attention.step import RaggedAttention, StepAttention
from minivllm.models.checkpoint import CheckpointMixin
from minivllm.models.layers import MLP, Embedding, LayerNorm
from minivllm.models.linear import QKVParallelLinear, RowParallelLinear
from minivllm.models.model_config import BlockSizes, ModelConfig, require
from minivllm.models.token_types import decode_token_type_ids

CLASSIFIER = "pooler.score"  # where the pooler has it; checkpoints name it as they like


class EncoderAttention(nn.Module):
    """Self-attention in both directions."""

    def __init__(self, config: BlockSizes):
        super().__init__()
        self.scale = config.head_dim**-0.5
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=config.head_dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            bias=config.qkv_bias,
        )
        query_size = config.num_heads * config.head_dim
        self.o_proj = RowParallelLinear(query_size, config.hidden_size, config.o_bias)

    def forward(self, x: torch.Tensor, attention: RaggedAttention) -> torch.Tensor:
        q, k, v = self.qkv_proj(x)
        return self.o_proj(attention(q, k, v, self.scale).flatten(-2))


class EncoderLayer(nn.Module):
    """Attention and MLP, each beside a residual and before a norm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_attn = EncoderAttention(config)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)
        self.output_layernorm = LayerNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: torch.Tensor, attention: RaggedAttention) -> torch.Tensor:
        x, _ = self.post_attention_layernorm(self.self_attn(x, attention), x)
        x, _ = self.output_layernorm(self.mlp(x), x)
        return x


class Encoder(nn.Module):
    """Embeddings, their norm, layers: everything under ``bert.`` in a checkpoint."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        rows = config.max_position_embeddings + config.position_offset
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = Embedding(rows, config.hidden_size)
        self.embed_token_types = Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))


class EncoderModel(CheckpointMixin):
    """An encoder with a pooler on it. Its subclasses are the families.

    Args:
        config: its shapes.
        pooler: makes of hidden states what was asked for (``pooling/``); None: of a test.

    Raises:
        ValueError: for quantized weights, which an encoder does not have yet.
    """

    default_seq_pooling_type = "CLS"  # the first token was trained to tell what the text is about
    supports_lora = False
    lm_head = None
    ignored_tensors = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")

    def __init__(self, config: ModelConfig, pooler: Any = None):
        super().__init__()
        if config.quant_config is not None:
            raise ValueError("quantized weights of an encoder are not supported yet.")
        self.config = config
        self.model = Encoder(config)
        self.pooler = pooler
        self.transforms: list[str] = []  # what has changed it since loading, each only once

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        """The ``ModelConfig`` fields that are read in another way than a decoder's."""
        require(hf, position_embedding_type="absolute", is_decoder=False)
        return {
            "is_encoder_only": True,
            "intermediate_size": hf.intermediate_size,
            "hidden_act": hf.hidden_act,
            "norm_eps": hf.layer_norm_eps,
            "qkv_bias": True,
            "o_bias": True,
            "mlp_bias": True,
            "type_vocab_size": hf.type_vocab_size,
            "tie_word_embeddings": False,  # there is no head that would share them
        }

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
    ) -> torch.Tensor:
        """Hidden states of a flat batch of whole prompts.

        Args:
            token_ids: int64 ``[num_tokens]``, all prompts one after the other; token types are in
                their upper bits (``token_types.py``).
            positions: int64 ``[num_tokens]``, from 0 in each prompt.
            attention: of this step; its cache is not used.

        Returns:
            ``[num_tokens, hidden_size]``.
        """
        token_ids, types = decode_token_type_ids(token_ids)
        x = self.model.embed_tokens(token_ids) + self.model.embed_token_types(types)
        x += self.model.embed_positions(positions + self.config.position_offset)
        x = self.model.norm(x)
        # all layers have the same rows, and none keeps K and V
        ragged = RaggedAttention(attention.backend, attention.metadata[0])
        for layer in self.model.layers:
            x = layer(x, ragged)
        return x

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill parameters as ``CheckpointMixin`` does; heads that are not built are left out."""
        # heads that guess a masked token, and whether a sentence comes next
        unused: tuple[str, ...] = ("cls.", "lm_head.")
        if getattr(self.pooler, "score", None) is None:
            unused += ("classifier.",)
        super().load_weights(
            (_newer_name(name), tensor) for name, tensor in weights if not name.startswith(unused)
        )


def encoder_names(prefix: str) -> dict[str, str]:
    """Our names' parts and those of a checkpoint with this prefix: see ``checkpoint_names``."""
    return {
        "model.embed_tokens": f"{prefix}.embeddings.word_embeddings",
        "model.embed_positions": f"{prefix}.embeddings.position_embeddings",
        "model.embed_token_types": f"{prefix}.embeddings.token_type_embeddings",
        "model.norm": f"{prefix}.embeddings.LayerNorm",
        "model.layers": f"{prefix}.encoder.layer",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.o_proj": "attention.output.dense",
        "post_attention_layernorm": "attention.output.LayerNorm",
        "mlp.up_proj": "intermediate.dense",
        "mlp.down_proj": "output.dense",
        "output_layernorm": "output.LayerNorm",
    }


def _newer_name(name: str) -> str:
    """The name of a norm's tensor by which TensorFlow's first BERTs did not know it."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
