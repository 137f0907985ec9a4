"""Linear layers: ``x @ weight.T + bias``, and the method by which each keeps its weight.

A layer knows its sizes and its name in a checkpoint. Its ``LinearMethod`` decides how the weight
lies in memory and how it is multiplied. (vLLM: vllm/model_executor/layers/linear.py)
(notebook 20)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minivllm.distributed.group import Alone, Group
from minivllm.models.product import returns_product
from minivllm.utils.tensors import as_numpy, as_tensor

ArrayProduct = Callable[[np.ndarray], np.ndarray]  # [n, input_size] to [n, output_size]


class LinearMethod(ABC):
    """Storage of a linear layer's weight, and its product (vLLM: LinearMethodBase)."""

    @abstractmethod
    def create_weights(self, layer: Linear) -> None:
        """Give the layer the empty parameters that a checkpoint will fill."""

    def part_tensors(self, layer: Linear, part: str, rows: slice) -> dict[str, torch.Tensor]:
        """Places that a checkpoint's tensors fill, by the ends of their names.

        Args:
            layer: that the parameters are in.
            part: of a fused layer, else the layer's own name.
            rows: the part's, of the layer's outputs.
        """
        return {kind: p[rows] for kind, p in layer.named_parameters(recurse=False)}

    def process_weights_after_loading(self, layer: Linear) -> None:  # noqa: B027
        """Convert the loaded weights to the layout of products: called once, by default nothing."""

    @abstractmethod
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        """``[num_tokens, input_size]`` to ``[num_tokens, output_size]``, bias included."""

    def array_product(self, layer: Linear, dtype: torch.dtype) -> ArrayProduct:
        """``apply`` for arrays (``as_numpy``) of this dtype: through torch, unless we know better.

        It is asked for when weights are laid out as they will stay.
        """
        return lambda x: as_numpy(self.apply(layer, as_tensor(x, dtype)))


class EmbeddingMethod(LinearMethod):
    """A linear method that can also read rows of its weight, for the look-ups of an embedding.

    In its methods ``layer`` may be an embedding, too: it has the sizes and the bias of one.
    """

    @abstractmethod
    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, ``[num_tokens, input_size]``, of any float dtype."""


class UnquantizedLinearMethod(LinearMethod):
    """The plain linear method: a weight ``[output_size, input_size]`` of the model's dtype."""

    def create_weights(self, layer: Linear) -> None:
        layer.weight = nn.Parameter(torch.empty(layer.output_size, layer.input_size))

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer.weight, layer.bias)


class Linear(nn.Module):
    """A linear layer: ``x @ weight.T + bias`` (vLLM: LinearBase).

    Args:
        input_size, output_size: widths of input and output.
        bias: whether there is one.
        quant_method: how the weight is kept; None: as it is.
    """

    weight: torch.Tensor  # a parameter, as is the bias; the method makes both
    bias: torch.Tensor | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool,
        quant_method: LinearMethod | None = None,
    ):
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.quant_method = quant_method or UnquantizedLinearMethod()
        self.quant_method.create_weights(self)
        self.bias = nn.Parameter(torch.empty(output_size)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply(self, x)

    def replace_method(self, quant_method: LinearMethod) -> None:
        """Keep the weight in another way, before a checkpoint fills it."""
        del self.weight
        self.quant_method = quant_method
        quant_method.create_weights(self)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, bias={self.bias is not None}"


class ColumnParallelLinear(Linear):
    """A linear layer whose outputs tensor parallelism divides: a device gets rows of the weight."""


class RowParallelLinear(Linear):
    """A linear layer whose inputs tensor parallelism divides; the ranks' outputs are summed."""

    group: Group = Alone()  # ranks that share it

    def share_with(self, group: Group) -> None:
        """Set the ranks that share this layer. Only the first one adds the bias."""
        self.group = group
        if group.rank > 0:
            self.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if self.group.size == 1 else self.group.all_reduce(y)


class ParallelLMHead(ColumnParallelLinear):
    """The output head: hidden states to logits, a column for each token of the vocabulary."""

    group: Group = Alone()  # ranks that share it

    def share_with(self, group: Group, vocab_size: int) -> None:
        """Set the ranks that share this layer, and the number of columns without padding."""
        self.group = group
        self.vocab_size = vocab_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the whole vocabulary, the same on every rank."""
        logits = super().forward(x)
        if self.group.size == 1:
            return logits
        return self.group.all_gather(logits)[:, : self.vocab_size].contiguous()


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several linear layers with the same input, fused: one product instead of several.

    Args:
        input_size: width of the input.
        output_sizes: the name of each part in a checkpoint, and its width.
        bias: whether every part has one.
    """

    def __init__(self, input_size: int, output_sizes: dict[str, int], bias: bool):
        super().__init__(input_size, sum(output_sizes.values()), bias)
        self.output_sizes = output_sizes


class QKVParallelLinear(MergedColumnParallelLinear):
    """The fused projection to queries, keys and values, with grouped heads."""

    def __init__(
        self, hidden_size: int, head_dim: int, num_heads: int, num_kv_heads: int, bias: bool
    ):
        heads = {"q_proj": num_heads, "k_proj": num_kv_heads, "v_proj": num_kv_heads}
        super().__init__(hidden_size, {name: n * head_dim for name, n in heads.items()}, bias)
        self.head_dim = head_dim
        self.num_heads = tuple(heads.values())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Query, key and value, ``[num_tokens, heads, head_dim]`` each: views, no copies."""
        qkv = super().forward(x).view(len(x), -1, self.head_dim)
        return qkv.split_with_sizes(self.num_heads, 1)
