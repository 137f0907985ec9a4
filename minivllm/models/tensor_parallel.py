"""Tensor parallelism: a rank is a thinner model, with a share of every layer's weights.

Its config has fewer heads and a narrower MLP, so attention, MLP and KV cache are what they always
are. Ranks meet in three places: a row-parallel layer's outputs are summed, so are the rows of the
embedding, and the head's logits are gathered. (vLLM: vllm/model_executor/layers/linear.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.distributed.group import Group
from minivllm.distributed.shard import kv_head_share, share, vocab_share
from minivllm.models.decoder import DecoderModel
from minivllm.models.encoder import EncoderModel
from minivllm.models.layers import VocabParallelEmbedding
from minivllm.models.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ParallelLMHead,
    QKVParallelLinear,
    RowParallelLinear,
)

Model = TypeVar("Model", DecoderModel, EncoderModel)


class Cut(NamedTuple):
    """A rank's share of a tensor: some slices along one of its dimensions, side by side."""

    shape: torch.Size  # of the whole tensor
    dim: int
    slices: tuple[slice, ...]
    padding: int = 0  # rows of zeros behind them: a vocabulary's end

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The share of a tensor, whose other numbers are not read if they are still in a file."""
        pieces = [whole[s] if self.dim == 0 else whole[:, s] for s in self.slices]
        part = pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.dim)
        return F.pad(part, (0, 0, 0, self.padding)) if self.padding else part

    def within(self, rows: slice) -> Cut:
        """The same share of some of its rows, which are a tensor of their own."""
        inside = [s for s in self.slices if rows.start <= s.start and s.stop <= rows.stop]
        moved = tuple(slice(s.start - rows.start, s.stop - rows.start) for s in inside)
        return Cut(torch.Size((rows.stop - rows.start, *self.shape[1:])), 0, moved, self.padding)

    @property
    def transposed(self) -> Cut:
        """The same share of the transposed matrix."""
        return Cut(torch.Size(self.shape[::-1]), 1 - self.dim, self.slices)


def divide(whole: Model, group: Group) -> Model:
    """Make a rank's model of a whole one, both without memory yet.

    Args:
        whole: a DecoderModel or an EncoderModel.
        group: the ranks that share its layers.

    Raises:
        ValueError: if they cannot.
    """
    model = type(whole)(whole.config.shard(group.rank, group.size), whole.pooler)
    _join(model, group)
    model.parameter_cuts = {
        f"{path}.{kind}": cut
        for path, module in whole.named_modules()
        for kind, cut in _cuts(whole, module, group).items()
    }
    model.cuts = dict(_checkpoint_cuts(whole, model.parameter_cuts))
    model.elsewhere = whole.checkpoint_tensors().keys() - model.checkpoint_tensors().keys()
    return model.requires_grad_(False).eval()


def _join(model: Model, group: Group) -> None:
    """Let the ranks' models compute together."""
    for module in model.modules():
        if isinstance(module, RowParallelLinear):
            module.share_with(group)
    config = model.config
    embedding = VocabParallelEmbedding(config.vocab_size, config.hidden_size, group)
    embedding.scale = model.model.embed_tokens.scale
    model.model.embed_tokens = embedding
    if model.lm_head is not None:
        model.lm_head = ParallelLMHead(config.hidden_size, embedding.output_size, bias=False)
        model.lm_head.share_with(group, config.vocab_size)
        if config.tie_word_embeddings:
            model.lm_head.weight = embedding.weight


def _cuts(whole: Model, module: nn.Module, group: Group) -> dict[str, Cut]:
    """A rank's shares of a module's parameters, by their kind; of other parameters it has all."""
    parameters = dict(module.named_parameters(recurse=False))
    if module is whole.model.embed_tokens or module is whole.lm_head:
        shape = parameters["weight"].shape
        rows = vocab_share(shape[0], group.rank, group.size)
        first = min(rows.start, shape[0])
        last = min(rows.stop, shape[0])
        padding = rows.stop - rows.start - (last - first)
        return {"weight": Cut(shape, 0, (slice(first, last),), padding)}
    if isinstance(module, ColumnParallelLinear):
        shares = tuple(_output_shares(module, group))
        return {kind: Cut(p.shape, 0, shares) for kind, p in parameters.items()}
    if isinstance(module, RowParallelLinear):
        columns = share(module.input_size, group.rank, group.size)
        return {"weight": Cut(parameters["weight"].shape, 1, (columns,))}
    return {}


def _output_shares(layer: ColumnParallelLinear, group: Group) -> Iterator[slice]:
    """Outputs that a rank has of each part of a layer."""
    begin = 0
    sizes = [layer.output_size]
    unit = 1
    if isinstance(layer, QKVParallelLinear):
        sizes = list(layer.num_heads)
        unit = layer.head_dim
    elif isinstance(layer, MergedColumnParallelLinear):
        sizes = list(layer.output_sizes.values())
    for number, size in enumerate(sizes):
        are_kv_heads = isinstance(layer, QKVParallelLinear) and number > 0
        some = (kv_head_share if are_kv_heads else share)(size, group.rank, group.size)
        yield slice(begin + some.start * unit, begin + some.stop * unit)
        begin += size * unit


def _checkpoint_cuts(whole: Model, cuts: Mapping[str, Cut]) -> Iterator[tuple[str, Cut]]:
    """Shares of a checkpoint's tensors by their names there: those of the parameters they fill."""
    embedding = "model.embed_tokens.weight"
    yield whole.checkpoint_name(embedding), cuts[embedding]
    for name, (path, layer, _, rows) in whole.checkpoint_linears().items():
        for kind, _ in layer.named_parameters(recurse=False):
            cut = cuts.get(f"{path}.{kind}")
            if cut is not None:
                cut = cut if cut.dim else cut.within(rows)
                is_transposed = f"{name}.{kind}".endswith(whole.transposed_in_checkpoint)
                yield f"{name}.{kind}", cut.transposed if is_transposed else cut
