"""CheckpointMixin: weight loading, from a checkpoint's tensor names to parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from minivllm.models.linear import Linear, MergedColumnParallelLinear
from minivllm.models.model_config import ModelConfig

_KV_SCALES = (".k_scale", ".v_scale", ".kv_scale")
# the same, as what a projection puts out (vLLM: get_cache_scale_mapper)
_OUTPUT_SCALES = {".k_proj.output_scale": ".k_scale", ".v_proj.output_scale": ".v_scale"}
_UNUSED_SCALES = (".q_scale", ".prob_scale")  # attention rounds neither queries nor its weights


class LinearPart(NamedTuple):
    """A linear layer of a checkpoint: one of ours, or a part of a fused one."""

    path: str  # of our layer in the model: "model.layers.0.self_attn.qkv_proj"
    layer: Linear
    part: str  # "q_proj"; the last name of the path for a layer that is not fused
    rows: slice  # of the layer's weight and bias


class CheckpointMixin(nn.Module):
    """Weight loading of a model: tensor names of its checkpoints, and the parameters they fill."""

    checkpoint_names: dict[str, str] = {}  # noqa: RUF012  our names' parts -> the checkpoint's
    fused_in_checkpoint = False  # whether q, k and v are one tensor there, too
    transposed_in_checkpoint: tuple[str, ...] = ()  # endings of names of transposed matrices
    supports_lora = True  # whether adapters can be put on its layers
    base_model_prefix = "model"  # checkpoints saved without a head leave it out
    ignored_tensors: tuple[str, ...] = ()  # endings of names that hold nothing to learn
    # scales of a KV cache in 8 bits, by the checkpoint's names; none until weights are loaded
    kv_scales: Mapping[str, float] = MappingProxyType({})
    # of a rank of several: its shares of parameters and, by their names, of a checkpoint's tensors
    parameter_cuts: Mapping[str, Any] = MappingProxyType({})
    cuts: Mapping[str, Any] = MappingProxyType({})
    elsewhere: Set[str] = frozenset()  # tensors that only other ranks have
    config: ModelConfig
    pooler: Any  # a Pooler, a room below; None: there is a head

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that a checkpoint must hold: names, and the parameters they fill.

        For fused layers that is a slice, one for each of the tensors that were fused.
        """
        tensors: dict[str, torch.Tensor] = {}
        for path, module in self.named_modules():
            places = {path: dict(module.named_parameters(recurse=False))}
            if isinstance(module, Linear) or getattr(module, "quant_method", None):
                method = module.quant_method
                places = {
                    name: method.part_tensors(module, part.part, part.rows)
                    for name, part in self._linear_parts(path, module)
                }
            for ours, named in places.items():
                for kind, tensor in named.items():
                    name = self.checkpoint_name(f"{ours}.{kind}")
                    is_transposed = name.endswith(self.transposed_in_checkpoint)
                    tensors[name] = tensor.T if is_transposed else tensor
        if self.config.tie_word_embeddings:  # it comes with the embedding
            tensors.pop("lm_head.weight", None)
        return tensors

    def checkpoint_linears(self) -> dict[str, LinearPart]:
        """Linear layers by their checkpoint's names, the head included: what each is here.

        Adapters and quantized tensors are named after them.
        """
        return {
            self.checkpoint_name(name): part
            for path, module in self.named_modules()
            if isinstance(module, Linear)
            for name, part in self._linear_parts(path, module)
        }

    def checkpoint_shape(self, name: str, part: LinearPart) -> tuple[int, int]:
        """Outputs and inputs of a linear layer in a checkpoint; here a rank may have a share."""
        if (cut := self.cuts.get(f"{name}.weight")) is not None:
            return cut.shape
        return part.rows.stop - part.rows.start, part.layer.input_size

    def _linear_parts(self, path: str, layer: Linear) -> Iterator[tuple[str, LinearPart]]:
        """The parts of a layer; their names are unfused, but otherwise ours."""
        own = path.rpartition(".")[2]
        sizes = {own: layer.output_size}
        if isinstance(layer, MergedColumnParallelLinear) and not self.fused_in_checkpoint:
            sizes = layer.output_sizes
        begin = 0
        for part, size in sizes.items():
            rows = slice(begin, begin + size)
            yield path.removesuffix(own) + part, LinearPart(path, layer, part, rows)
            begin += size

    @classmethod
    def checkpoint_name(cls, name: str) -> str:
        """The checkpoint's name for one of our parameters."""
        for ours, theirs in cls.checkpoint_names.items():
            name = name.replace(ours, theirs)
        return name.removeprefix("pooler.")  # which is ours alone

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy each tensor, or a rank's share of it, into its parameter or slice of a fused one.

        Raises:
            ValueError: if tensors are missing, unknown, of another shape or of another kind.
        """
        places = self.checkpoint_tensors()
        ignored = self.ignored_tensors + _UNUSED_SCALES
        ignored_heads = () if self.pooler is None else self.pooler.ignored_heads
        known = places.keys() | self.elsewhere
        filled: set[str] = set()
        unknown: list[str] = []
        kv_scales: dict[str, float] = {}
        for name, tensor in weights:
            if name.endswith((*_KV_SCALES, *_OUTPUT_SCALES)):
                kv_scales[_scale_name(name)] = _positive_number(name, tensor)
                continue
            if name not in known and f"{self.base_model_prefix}.{name}" in known:
                name = f"{self.base_model_prefix}.{name}"
            if name == "lm_head.weight" and self.config.tie_word_embeddings and not ignored_heads:
                name = self.checkpoint_name("model.embed_tokens.weight")  # by its other name
            if name in self.elsewhere:
                continue
            if name not in places:
                # an extra bias of zeros adds nothing: GPTQ's packers write them
                zeros = name.endswith(".bias") and (tensor.is_meta or not tensor.any())
                ok = zeros or name.endswith(ignored) or name.startswith(ignored_heads)
                unknown += [] if ok else [name]
                continue
            place = places[name]
            tensor = self.cuts[name].of(tensor) if name in self.cuts else tensor
            if tensor.shape != place.shape and not tensor.numel() == place.numel() == 1:
                raise ValueError(
                    f"the checkpoint's {name!r} has shape {tuple(tensor.shape)}, but config.json "
                    f"asks for {tuple(place.shape)}."
                )
            if tensor.dtype != place.dtype and not (_is_float(tensor) and _is_float(place)):
                raise ValueError(
                    f"the checkpoint's {name!r} has dtype {tensor.dtype}, but config.json asks for "
                    f"{place.dtype}."
                )
            place.copy_(tensor.reshape(place.shape))
            filled.add(name)
        self.kv_scales = kv_scales
        missing = [name for name in places if name not in filled]
        problems = [
            f"{what.format(len(names))}, the first is {names[0]!r}"
            for what, names in (("lacks {} tensors", missing), ("has {} unknown tensors", unknown))
            if names
        ]
        if problems:
            reason = " and ".join(problems)
            raise ValueError(f"the checkpoint does not fit its config.json: it {reason}.")


def _scale_name(name: str) -> str:
    """The name of a KV cache's scale by which ``layer_scales`` knows it."""
    for theirs, ours in _OUTPUT_SCALES.items():
        name = name.replace(theirs, ours)
    return name


def _positive_number(name: str, tensor: torch.Tensor) -> float:
    """The value of a scale; 1 as long as only its shape is known."""
    if tensor.numel() == 1:
        number = 1.0 if tensor.is_meta else tensor.float().item()
        if 0 < number < float("inf"):
            return number
    raise ValueError(
        f"the checkpoint's {name!r} must be one positive number, got {tensor.tolist()}."
        if not tensor.is_meta
        else f"the checkpoint's {name!r} has shape {tuple(tensor.shape)}, but is one number."
    )


def _is_float(tensor: torch.Tensor) -> bool:
    """True for the floats of 16 bits and more, which stand for one another."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1
