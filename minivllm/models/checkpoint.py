"""CheckpointMixin: weight loading, from a checkpoint's tensor names to parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from minivllm.models.linear import MergedColumnParallelLinear
from minivllm.models.model_config import ModelConfig


class CheckpointMixin(nn.Module):
    """Weight loading of a model: tensor names of its checkpoints, and the parameters they fill."""

    checkpoint_names: dict[str, str] = {}  # noqa: RUF012  our names' parts -> the checkpoint's
    base_model_prefix = "model"  # checkpoints saved without a head leave it out
    ignored_tensors: tuple[str, ...] = ()  # endings of names that hold nothing to learn
    config: ModelConfig

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that a checkpoint must hold: names, and the parameters they fill.

        For fused layers that is a slice, one for each of the tensors that were fused.
        """
        tensors: dict[str, torch.Tensor] = {}
        for path, module in self.named_modules():
            named = module.named_parameters(recurse=False)
            if isinstance(module, MergedColumnParallelLinear):
                path, named = path.rpartition(".")[0], module.named_shards()
            tensors |= {self.checkpoint_name(f"{path}.{name}"): tensor for name, tensor in named}
        if self.config.tie_word_embeddings:  # it comes with the embedding
            del tensors["lm_head.weight"]
        return tensors

    def checkpoint_name(self, name: str) -> str:
        """The checkpoint's name for one of our parameters."""
        for ours, theirs in self.checkpoint_names.items():
            name = name.replace(ours, theirs)
        return name

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy each tensor into its parameter, or into its slice of a fused one.

        Raises:
            ValueError: if tensors are missing, unknown or of another shape.
        """
        places = self.checkpoint_tensors()
        ignored = self.ignored_tensors
        if self.config.tie_word_embeddings:
            ignored += ("lm_head.weight",)
        filled, unknown = set(), []
        for name, tensor in weights:
            if name not in places and f"{self.base_model_prefix}.{name}" in places:
                name = f"{self.base_model_prefix}.{name}"
            if name not in places:
                unknown += [] if name.endswith(ignored) else [name]
                continue
            if tensor.shape != places[name].shape:
                raise ValueError(
                    f"the checkpoint's {name!r} has shape {tuple(tensor.shape)}, but config.json "
                    f"asks for {tuple(places[name].shape)}."
                )
            places[name].copy_(tensor)
            filled.add(name)
        missing = [name for name in places if name not in filled]
        problems = [
            f"{what.format(len(names))}, the first is {names[0]!r}"
            for what, names in (("lacks {} tensors", missing), ("has {} unknown tensors", unknown))
            if names
        ]
        if problems:
            reason = " and ".join(problems)
            raise ValueError(f"the checkpoint does not fit its config.json: it {reason}.")
