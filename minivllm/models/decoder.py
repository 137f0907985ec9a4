"""One decoder for the Llama and Qwen2 family, on flat ragged tokens and a paged KV cache.

An ordinary transformer but for one line in ``Attention``: the backend puts K and V into slots, and
reads them back through the block table. Module names are Hugging Face's, so weights load by name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_storage import KVStorage
from minivllm.attention.metadata import AttentionMetadata
from minivllm.models.layers import GatedMLP, RMSNorm, rotary_tables, rotate
from minivllm.models.model_config import ModelConfig


class Attention(nn.Module):
    """Self-attention with grouped query heads over the paged cache."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.o_bias)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        query = rotate(self.q_proj(x).unflatten(-1, (-1, self.head_dim)), cos, sin)
        key = rotate(self.k_proj(x).unflatten(-1, (-1, self.head_dim)), cos, sin)
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        out = backend.forward(query, key, value, kv_cache, metadata, scale=self.head_dim**-0.5)
        return self.o_proj(out.flatten(-2))


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)

    def forward(self, x, cos, sin, kv_cache, metadata, backend) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, kv_cache, metadata, backend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token embedding, layers, final norm: everything under ``model.`` in a checkpoint."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DecoderForCausalLM(nn.Module):
    """A decoder and the head that turns its last hidden state into logits."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_storage: KVStorage,
        metadata: AttentionMetadata,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """Hidden states of a flat batch.

        Args:
            token_ids, positions: int64 ``[num_tokens]``, all sequences one after the other.
            kv_storage: written at this batch's slots, read through its block tables.
            metadata: which rows belong to which sequence.
            backend: does the writing and the reading.

        Returns:
            ``[num_tokens, hidden_size]``, after the final norm.
        """
        x = self.model.embed_tokens(token_ids)
        cos, sin = rotary_tables(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, kv_storage.layer(index), metadata, backend)
        return self.model.norm(x)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``."""
        return F.linear(hidden, self.lm_head.weight).float()
