"""The parts of a decoder layer. All work on flat tokens: ``[num_tokens, ...]``.

Parameters begin empty: the loader fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.models.model_config import ModelConfig

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def get_act_fn(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that a config.json calls so.

    Raises:
        ValueError: if we do not have it.
    """
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"hidden_act={name!r} in config.json is not supported; {known} are.")
    return ACTIVATIONS[name]


class Embedding(nn.Embedding):
    """``[num_tokens]`` ids to ``[num_tokens, hidden_size]``."""

    def reset_parameters(self):
        """Nothing: random numbers for billions of weights take a while."""


class Linear(nn.Linear):
    """``x @ weight.T + bias``."""

    def reset_parameters(self):
        """Nothing, as for ``Embedding``."""

    def pack(self):
        """On a CPU: lay the weight out in the order in which oneDNN's product reads it.

        That is done in every call otherwise, and for the few rows of a decode it costs half as
        much as the product itself. (vLLM: ``dispatch_cpu_unquantized_gemm``,
        vllm/model_executor/layers/utils.py)
        """
        if _onednn_multiplies(self.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
            self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.is_mkldnn:
            linear = torch.ops.mkldnn._linear_pointwise
            return linear(x, self.weight, self.bias, "none", [], "")
        return super().forward(x)


def _onednn_multiplies(weight: torch.Tensor) -> bool:
    """Whether torch has oneDNN here, and that has fast products of this type."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    onednn = torch.ops.mkldnn
    return (
        weight.dtype == torch.float32
        or (weight.dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported())
        or (weight.dtype == torch.float16 and onednn._is_mkldnn_fp16_supported())
    )


class MergedColumnParallelLinear(Linear):
    """Several linear layers with the same input as one matrix: one GEMM instead of several.

    (vLLM: the same name; "parallel" is where tensor parallelism would cut.)

    Args:
        input_size: width of the input.
        output_sizes: the name of each part in a checkpoint, and its width.
        bias: whether every part has one.
    """

    def __init__(self, input_size: int, output_sizes: dict[str, int], bias: bool):
        super().__init__(input_size, sum(output_sizes.values()), bias)
        self.output_sizes = output_sizes

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """The outputs of the parts, ``[num_tokens, output_size]`` each: views, no copies."""
        return super().forward(x).split(tuple(self.output_sizes.values()), dim=-1)

    def named_shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each part's slice of weight and bias, under the name a checkpoint has for it."""
        for kind, parameter in self.named_parameters():
            parts = parameter.split(tuple(self.output_sizes.values()))
            for name, part in zip(self.output_sizes, parts, strict=True):
                yield f"{name}.{kind}", part


class QKVParallelLinear(MergedColumnParallelLinear):
    """The projections to queries, keys and values in one, with grouped heads."""

    def __init__(self, hidden_size: int, head_dim: int, num_heads: int, num_kv_heads: int, bias):
        sizes = {"q_proj": num_heads, "k_proj": num_kv_heads, "v_proj": num_kv_heads}
        super().__init__(hidden_size, {name: n * head_dim for name, n in sizes.items()}, bias)
        self.head_dim = head_dim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Query, key and value, ``[num_tokens, heads, head_dim]`` each."""
        return tuple(part.unflatten(-1, (-1, self.head_dim)) for part in super().forward(x))


class RMSNorm(nn.Module):
    """``x / rms(x) * weight``, the mean taken in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class GatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))`` (Shazeer 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        sizes = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, sizes, config.mlp_bias)
        self.act_fn = get_act_fn(config.hidden_act)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x)
        return self.down_proj(self.act_fn(gate).mul_(up))


class MLP(nn.Module):
    """``down(act(up(x)))``: what came before the gate."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.act_fn = get_act_fn(config.hidden_act)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))
