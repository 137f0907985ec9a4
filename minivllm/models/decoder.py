"""One decoder for every family, on flat ragged tokens and a paged KV cache (notebooks 00b, 01).

An ordinary transformer but for one line in ``Attention``: the backend puts K and V into slots, and
reads them back through the block table. What a family does differently is said in a file of its own
(``llama.py``, ``gpt2.py``, ...): other classes for the parts below, another reading of config.json.
Module names are those of Hugging Face's Llama, except that q, k, v and gate, up are fused.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from minivllm.attention.step import LayerAttention, StepAttention
from minivllm.models import ops
from minivllm.models.checkpoint import CheckpointMixin
from minivllm.models.layers import CompiledLayers, Embedding, GatedMLP, RMSNorm
from minivllm.models.linear import ParallelLMHead, QKVParallelLinear, RowParallelLinear
from minivllm.models.model_config import ModelConfig
from minivllm.models.mrope import get_rope


class Attention(nn.Module):
    """Self-attention with grouped query heads over the paged cache."""

    def __init__(self, config: ModelConfig, sliding_window: int | None):
        super().__init__()
        self.scale = config.head_dim**-0.5
        self.sliding_window = sliding_window
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=config.head_dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            bias=config.qkv_bias,
        )
        self.q_norm: nn.Module = nn.Identity()  # Qwen3 has norms here
        self.k_norm: nn.Module = nn.Identity()
        self.rotary_embedding = ops.rotary_embedding
        query_size = config.num_heads * config.head_dim
        self.o_proj = RowParallelLinear(query_size, config.hidden_size, bias=config.o_bias)

    def forward(
        self,
        x: torch.Tensor,
        cos_sin: torch.Tensor | None,
        attention: LayerAttention,
    ) -> torch.Tensor:
        q, k, v = self.qkv_proj(x)
        q = self.q_norm(q)
        k = self.k_norm(k)
        if cos_sin is not None:
            q, k = self.rotary_embedding(q, k, cos_sin)
        # paged: K and V go into slots, and are read back through the block table
        out = attention(q, k, v, self.scale, self.sliding_window)
        return self.o_proj(out.flatten(-2))


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    attention_class = Attention
    mlp_class: type[nn.Module] = GatedMLP
    norm_class: type[nn.Module] = RMSNorm

    def __init__(self, config: ModelConfig, sliding_window: int | None):
        super().__init__()
        self.input_layernorm = self.norm_class(config.hidden_size, config.norm_eps)
        self.self_attn = self.attention_class(config, sliding_window)
        self.post_attention_layernorm = self.norm_class(config.hidden_size, config.norm_eps)
        self.mlp = self.mlp_class(config)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor | None,
        attention: LayerAttention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns this layer's output, not yet added, and the residual to add it to.

        They are added together where the next norm reads them (vLLM does so, too). ``residual`` is
        None in the first layer, where ``x`` is all there is.
        """
        if residual is None:
            residual = x
            x = self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, cos_sin, attention)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class Decoder(nn.Module):
    """Embeddings, layers, final norm: everything under ``model.`` in a checkpoint."""

    compiled_layers: CompiledLayers | None = None  # a faster way through the layers, if there is

    def __init__(self, config: ModelConfig, layer_class: type[DecoderLayer]):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = get_rope(config.head_dim, config.rope, config.max_model_len)
        self.embed_positions = None
        if config.rope is None:  # positions are learned; the first rows may stand for none
            rows = config.max_position_embeddings + config.position_offset
            self.embed_positions = Embedding(rows, config.hidden_size)
        self.layers = nn.ModuleList(layer_class(config, w) for w in config.sliding_windows)
        self.norm = layer_class.norm_class(config.hidden_size, config.norm_eps)

    def cos_sin(self, positions: torch.Tensor) -> list[torch.Tensor | None]:
        """Cosines and sines of positions for each layer, ``[num_tokens, 2, head_dim]``.

        Layers that turn by the same angles have the same tensor; None where positions are learned.
        """
        table = None if self.rotary_emb is None else self.rotary_emb(positions)
        return [table] * len(self.layers)

    def run_layers(
        self,
        x: torch.Tensor,
        cos_sin: list[torch.Tensor | None],
        attention: StepAttention,
        residual: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last layer's output and the residual to add it to, ``[num_tokens, hidden_size]``.

        A residual comes from an earlier stage.
        """
        compiled = self.compiled_layers
        if compiled is not None and type(attention.backend) is compiled.backend_class:
            return compiled(x, cos_sin, attention, residual)
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, cos_sin[index], attention.layer(index))
        assert residual is not None, "a decoder has layers"
        return x, residual


class DecoderModel(CheckpointMixin):
    """A decoder with something on it: a head that makes logits, or a pooler.

    Its subclasses are the families; their names are those in a config.json.

    Args:
        config: its shapes.
        pooler: makes of hidden states what was asked for (``pooling/``); None: it has a head.
    """

    decoder_class = Decoder
    layer_class = DecoderLayer
    default_seq_pooling_type = "LAST"  # the only row that has seen the whole prompt

    def __init__(self, config: ModelConfig, pooler: Any = None):
        super().__init__()
        self.config = config
        self.model = self.decoder_class(config, self.layer_class)
        self.pooler = pooler
        self.lm_head = cast(Any, None)
        self.transforms: list[str] = []  # what has changed it since loading, each only once
        if pooler is not None:
            return
        # Weights are tied by sharing the tensor, so that it is in memory once.
        self.lm_head = ParallelLMHead(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        """The ``ModelConfig`` fields that only this family knows, from a Hugging Face config."""
        raise NotImplementedError

    def embed(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[num_tokens]`` ids and positions to ``[num_tokens, hidden_size]``.

        Given embeddings stand in the place of the ids'; learned positions are added to them, too.
        """
        x = self.model.embed_tokens(token_ids) if inputs_embeds is None else inputs_embeds
        if self.model.embed_positions is not None:
            x = x + self.model.embed_positions(positions + self.config.position_offset)
        return x

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of a flat batch.

        Args:
            token_ids, positions: int64 ``[num_tokens]``, all sequences one after the other;
                positions may be ``[3, num_tokens]`` (see ``MRotaryEmbedding``).
            attention: of this step; writes and reads the cache.
            inputs_embeds: ``[num_tokens, hidden_size]`` in the place of the ids' embeddings. They
                must be fresh: the layers write into them.

        Returns:
            ``[num_tokens, hidden_size]``, after the final norm.
        """
        x = self.embed(token_ids, positions, inputs_embeds)
        x, residual = self.model.run_layers(x, self.model.cos_sin(positions), attention)
        x, _ = self.model.norm(x, residual)
        return x

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``, for a model with a head."""
        return self.lm_head(hidden).float()
