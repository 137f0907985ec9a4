"""The parts of a decoder layer. All work on flat tokens: ``[num_tokens, ...]``.

Parameters begin empty: the loader fills them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.step import StepAttention
from minivllm.distributed.group import Group
from minivllm.distributed.shard import vocab_share
from minivllm.models import ops
from minivllm.models.linear import (
    ColumnParallelLinear,
    EmbeddingMethod,
    Linear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from minivllm.models.model_config import BlockSizes, ModelConfig

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def get_act_fn(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The activation function of a name in config.json.

    Raises:
        ValueError: if we do not have it.
    """
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"hidden_act={name!r} in config.json is not supported; {known} are.")
    return ACTIVATIONS[name]


def get_act_and_mul_fn(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A gated activation: ``act(gate) * up`` of ``[num_tokens, 2 * size]``, the gate first.

    Raises:
        ValueError: as ``get_act_fn``.
    """
    act_fn = get_act_fn(name)

    def act_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return act_fn(gate).mul_(up)

    return ops.silu_and_mul if name == "silu" else act_and_mul


class Embedding(nn.Embedding):
    """``[num_tokens]`` ids to ``[num_tokens, hidden_size]``."""

    quant_method: EmbeddingMethod | None = None  # None: the weight is as it is
    bias = None
    scale: float | None = None  # that rows are multiplied by

    def __init__(self, output_size: int, input_size: int):
        super().__init__(output_size, input_size)
        self.output_size = output_size  # as a linear layer has them
        self.input_size = input_size
        self.dtype = self.weight.dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.quant_method is None:
            rows = super().forward(token_ids)
        else:
            rows = self.quant_method.embedding(cast(Linear, self), token_ids).to(self.dtype)
        return rows if self.scale is None else rows * self.scale

    def reset_parameters(self):
        """No-op: the loader fills the weights, and random ones would take a while."""

    def replace_method(self, quant_method: EmbeddingMethod) -> None:
        """Keep the weight in another way, before a checkpoint fills it."""
        for name in [name for name, _ in self.named_parameters(recurse=False)]:
            delattr(self, name)
        self.quant_method = quant_method
        quant_method.create_weights(cast(Linear, self))


class TiedEmbeddingMethod(EmbeddingMethod):
    """Use the tied head's weight instead of an own one.

    Args:
        head: keeps the weight, by an ``EmbeddingMethod``.
    """

    def __init__(self, head: Linear):
        self.head = head

    def create_weights(self, layer: Linear) -> None:
        """No-op: the head has created them."""

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        return cast(EmbeddingMethod, self.head.quant_method).embedding(self.head, token_ids)


class VocabParallelEmbedding(Embedding):
    """One rank's rows of the embedding; an all-reduce brings the rows of other ranks.

    Args:
        vocab_size, input_size: of the whole embedding.
        group: the ranks that share it.
    """

    def __init__(self, vocab_size: int, input_size: int, group: Group):
        self.share = vocab_share(vocab_size, group.rank, group.size)
        super().__init__(self.share.stop - self.share.start, input_size)
        self.group = group

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        local = token_ids - self.share.start
        is_elsewhere = (local < 0) | (local >= self.output_size)
        rows = super().forward(local.masked_fill(is_elsewhere, 0))
        return self.group.all_reduce(rows.masked_fill(is_elsewhere[:, None], 0))


class RMSNorm(nn.Module):
    """RMSNorm: ``x / rms(x) * weight``, the mean in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.rms_norm = ops.rms_norm
        self.fused_add_rms_norm = ops.fused_add_rms_norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None):
        """Norm of x, or (norm of x + residual, x + residual). Works in place."""
        if residual is None:
            return self.rms_norm(x, self.weight, self.eps)
        return self.fused_add_rms_norm(x, residual, self.weight, self.eps), residual

    def divide(self, scales: torch.Tensor) -> None:
        """Let it put out that much less: each number divided by its scale, ``[size]``."""
        self.weight.div_(scales)


class LayerNorm(nn.LayerNorm):
    """LayerNorm: ``(x - mean(x)) / std(x) * weight + bias`` (Ba et al. 2016)."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None):
        """Return the normed sum and the sum: see ``RMSNorm.forward``."""
        if residual is None:
            return super().forward(x)
        return super().forward(residual.add_(x)), residual


class GatedMLP(nn.Module):
    """Gated MLP: ``down(act(gate(x)) * up(x))`` (Shazeer 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.hidden_size
        inner = config.intermediate_size
        bias = config.mlp_bias
        sizes = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = MergedColumnParallelLinear(width, sizes, bias)
        self.act_and_mul = get_act_and_mul_fn(config.hidden_act)
        self.down_proj = RowParallelLinear(inner, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_and_mul(self.gate_up_proj(x)))


class MLP(nn.Module):
    """MLP without a gate, as in GPT-2 and OPT: ``down(act(up(x)))``."""

    def __init__(self, config: BlockSizes):
        super().__init__()
        width = config.hidden_size
        inner = config.intermediate_size
        bias = config.mlp_bias
        self.up_proj = ColumnParallelLinear(width, inner, bias)
        self.act_fn = get_act_fn(config.hidden_act)
        self.down_proj = RowParallelLinear(inner, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class CompiledLayers(Protocol):
    """A transform's faster way through all layers of a decoder: see ``Decoder.run_layers``."""

    backend_class: type[AttentionBackend]  # the attention that it computes

    def __call__(
        self,
        x: torch.Tensor,
        cos_sin: list[torch.Tensor | None],
        attention: StepAttention,
        residual: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...
