"""compressed-tensors: groups of layers, each with its format, as LLM Compressor writes them.

(vLLM: vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minivllm.quantization.activations import round_activations
from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedWeight,
    Scheme,
    TensorSpec,
)
from minivllm.quantization.fields import Fields
from minivllm.quantization.fp8 import FP8Scheme
from minivllm.quantization.packing import check_g_idx, num_groups, num_words, unpack
from minivllm.utils.validation import check

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")


@dataclass(frozen=True)
class PackedScheme(Scheme):
    """W4A16 and W8A16, format pack-quantized: words along the inputs, each number plus half."""

    bits: int
    group_size: int  # -1: a scale for an output
    symmetric: bool
    has_g_idx: bool  # activation order: groups are not neighbours

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        words = num_words(input_size, self.bits, f"the inputs of {name}")
        groups = num_groups(input_size, self.group_size, f"the inputs of {name}")
        specs = {
            "weight_packed": TensorSpec((output_size, words), torch.int32),
            "weight_scale": TensorSpec((output_size, groups)),
            "weight_shape": TensorSpec((2,), torch.int64, optional=True),
        }
        if not self.symmetric:
            rows = num_words(output_size, self.bits, f"the outputs of {name}")
            specs["weight_zero_point"] = TensorSpec((rows, groups), torch.int32)
        if self.has_g_idx:
            specs["weight_g_idx"] = TensorSpec((input_size,), torch.int32)
        return specs

    def check(self, name: str, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        done = set()
        outputs, groups = tensors["weight_scale"].shape
        if "weight_shape" in tensors:
            found = tensors["weight_shape"].tolist()
            shape = [outputs, tensors["weight_packed"].shape[1] * 32 // self.bits]
            check(found == shape, f"{name}.weight_shape", found, f"{shape}")
            done.add("weight_shape")
        g_idx = tensors.get("weight_g_idx")
        if g_idx is not None and check_g_idx(g_idx, groups, f"{name}.weight_g_idx"):
            done.add("weight_g_idx")
        return done

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        codes = unpack(tensors["weight_packed"], self.bits)
        zeros: torch.Tensor | int = 2 ** (self.bits - 1)
        if not self.symmetric:
            zeros = unpack(tensors["weight_zero_point"].T, self.bits).T
        return QuantizedWeight(
            codes, tensors["weight_scale"], zeros=zeros, g_idx=tensors.get("weight_g_idx")
        )


@dataclass(frozen=True)
class Int8Scheme(Scheme):
    """W8A8, format int-quantized: weights in int8, and the input as well; or W8A16 so stored.

    A dynamic scale is of one token, so that a row's result never depends on its batch.
    """

    strategy: str  # "tensor", "channel", "group"
    group_size: int
    activations: str | None  # "static", "dynamic"
    symmetric_input: bool = True

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        groups = num_groups(input_size, self.group_size, f"the inputs of {name}")
        scales = (1,) if self.strategy == "tensor" else (output_size, groups)
        specs = {
            "weight": TensorSpec((output_size, input_size), torch.int8),
            "weight_scale": TensorSpec(scales),
        }
        if self.activations == "static":
            specs["input_scale"] = TensorSpec((1,))
            if not self.symmetric_input:
                specs["input_zero_point"] = TensorSpec((1,), torch.int8)
        return specs

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        weight = tensors["weight"]
        scales = tensors["weight_scale"]
        if self.strategy == "tensor":
            scales = scales.expand(len(weight), 1)
        return QuantizedWeight(weight, scales)

    def round_input(self, x: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.activations is None:
            return x
        return round_activations(
            x,
            torch.int8,
            scale=tensors.get("input_scale"),
            zero_point=tensors.get("input_zero_point"),
        )


@dataclass(frozen=True)
class CompressedTensorsConfig(QuantizationConfig):
    """Groups of layers by their targets, and the names that are left out."""

    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignore: tuple[str, ...] = ()

    name = "compressed-tensors"
    ignored_tensors = (".output_scale",)

    @classmethod
    def from_config(cls, config: dict, source: str) -> CompressedTensorsConfig:
        fields = Fields(config, source)
        for name in ("sparsity_config", "transform_config"):
            given = fields.part(name).values
            ok = given.get("format", given) in ("dense", {})
            check(ok, f"{name} in {source}", given, "absent")
        found = fields.part("config_groups")
        ok = bool(found.values or fields.part("kv_cache_scheme").values)
        check(ok, found.source, {}, "at least one group")
        groups = []
        for name in found.values:
            part = found.part(name)
            form = part.values.get("format") or config.get("format")
            part = Fields(part.values | {"format": form}, part.source)
            groups.append((tuple(part.patterns("targets")), _read_scheme(part)))
        return cls(tuple(groups), tuple(fields.patterns("ignore")))

    def get_scheme(self, name: str) -> Scheme | None:
        if any(_matches(target, name) for target in self.ignore):
            return None
        for wanted in (name, "Linear"):  # the class of all of them comes last
            for targets, scheme in self.groups:
                if any(_matches(target, wanted) for target in targets):
                    return scheme
        return None


def _matches(target: str, name: str) -> bool:
    """True for a target that is a name, or a pattern of it."""
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return target == name


def _read_scheme(group: Fields) -> Scheme:
    """The scheme of a group: weights, and input_activations if they are rounded, too."""
    kind = group.one_of("format", FORMATS)
    weights = group.part("weights")
    check(weights.values != {}, weights.source, None, "an object")
    number = weights.one_of("type", ("int", "float"), "int")
    if kind == "pack-quantized":
        return _read_packed(group, weights)
    weights.one_of("num_bits", (8,))
    weights.one_of("symmetric", (True,), True)
    if number == "float":
        group.one_of("format", ("float-quantized", "naive-quantized"))
        return _read_float(group, weights)
    group.one_of("format", ("int-quantized", "naive-quantized"))
    strategy = weights.one_of("strategy", ("channel", "tensor", "group"), "tensor")
    group_size = weights.group_size() if strategy == "group" else -1
    activations, symmetric = _read_activations(group, "int", ("token", "tensor"))
    return Int8Scheme(strategy, group_size, activations, symmetric_input=symmetric)


def _read_packed(group: Fields, weights: Fields) -> PackedScheme:
    weights.one_of("type", ("int",), "int")
    inputs = group.part("input_activations")
    check(inputs.values == {}, inputs.source, inputs.values, "null for packed weights")
    bits = weights.one_of("num_bits", (4, 8))
    symmetric = weights.one_of("symmetric", (True, False), True)
    strategy = weights.one_of("strategy", ("group", "channel"), "group")
    group_size = weights.group_size() if strategy == "group" else -1
    orders = (None, "group", "weight", "static", "dynamic", True, False)
    order = weights.one_of("actorder", orders)
    has_g_idx = order in ("group", "dynamic", True)
    return PackedScheme(bits, group_size, symmetric=symmetric, has_g_idx=has_g_idx)


def _read_float(group: Fields, weights: Fields) -> FP8Scheme:
    strategy = weights.one_of("strategy", ("channel", "tensor", "block"), "tensor")
    if strategy == "block":
        block = weights.block("block_structure")
        activations, _ = _read_activations(group, "float", ("group",))
        inputs = group.part("input_activations")
        if inputs.values:
            inputs.one_of("dynamic", (True,))
            inputs.one_of("group_size", (block[1],))
        return FP8Scheme(strategy, activations, block)
    activations, _ = _read_activations(group, "float", ("token", "tensor"))
    return FP8Scheme(strategy, activations)


def _read_activations(
    group: Fields, number: str, strategies: tuple[str, ...]
) -> tuple[str | None, bool]:
    """Rounding of the input (see the schemes), and True if its zero is 0."""
    inputs = group.part("input_activations")
    if not inputs.values:
        return None, True
    inputs.one_of("num_bits", (8,))
    inputs.one_of("type", (number,), "int")
    dynamic = inputs.one_of("dynamic", (True, False), False)
    inputs.one_of("strategy", strategies if dynamic else ("tensor",), "tensor")
    either = number == "int" and not dynamic
    symmetric = inputs.one_of("symmetric", (True, False) if either else (True,), True)
    return "dynamic" if dynamic else "static", symmetric
