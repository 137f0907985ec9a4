"""Quantizing a model layer by layer: each layer sees what the quantized ones before it give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from minivllm.lab.oracle import DenseAttention
from minivllm.lab.quantize.awq import find_channel_scales
from minivllm.lab.quantize.gptq import gptq
from minivllm.lab.quantize.rounding import QuantizedWeight, round_to_nearest
from minivllm.lab.quantize.smoothquant import smoothing_scales
from minivllm.models.checkpoint import LinearPart
from minivllm.models.decoder import DecoderModel
from minivllm.models.layers import RMSNorm
from minivllm.models.linear import Linear

METHODS = ("rtn", "gptq", "awq", "smoothquant")
FindScales = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of weight and inputs: [in]


class Sequence:
    """One calibration text on its way through the layers."""

    def __init__(self, model: DecoderModel, token_ids: list[int]):
        ids, positions = torch.tensor(token_ids), torch.arange(len(token_ids))
        self.hidden = model.embed(ids, positions)
        self.residual = None
        tables = model.model.cos_sin(positions)
        self.cos_sin = dict(zip(model.model.layers, tables, strict=True))

    def through(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of a layer and its residual; this sequence stays where it is."""
        residual = None if self.residual is None else self.residual.clone()
        return layer(self.hidden.clone(), residual, self.cos_sin[layer], DenseAttention())


@torch.inference_mode()
def quantize_model(
    model: DecoderModel,
    texts: list[list[int]],
    method: str,
    bits: int,
    group: int,
    sym: bool,
) -> Iterator[tuple[str, QuantizedWeight]]:
    """Quantize all linear layers but the head, in place; yield each by its checkpoint's name.

    Args:
        model: float32, as it was loaded.
        texts: token ids of calibration texts, at least one unless ``method`` is "rtn".
        method: one of ``METHODS``.
        bits: of each number.
        group: columns that share a scale; -1: all of a row.
        sym: whether the zero point is the middle; "awq" and "smoothquant" know.
    """
    parts = quantized_parts(model)
    group = group if group > 0 else 2**31
    sequences = [] if method == "rtn" else [Sequence(model, ids) for ids in texts]
    for index, layer in enumerate(model.model.layers):
        mine = {name: p for name, p in parts.items() if p.path.startswith(f"model.layers.{index}.")}
        if method == "awq":
            find_scales = partial(find_channel_scales, bits=bits, group=group)
            fold_channel_scales(layer, sequences, find_scales)
        if method == "smoothquant":
            fold_channel_scales(layer, sequences, smoothing_scales)
        hessians = gather_hessians(layer, sequences) if method == "gptq" else {}
        for name, part in mine.items():
            weight = part.layer.weight[part.rows]
            if method == "gptq":
                quantized = gptq(weight, hessians[part.layer], bits, group=group, sym=sym)
            else:
                quantized = round_to_nearest(weight, bits, group, sym=sym)
            weight.copy_(quantized.dequantize())
            yield name, quantized
        for sequence in sequences:
            sequence.hidden, sequence.residual = sequence.through(layer)


def record_inputs(layer: Any, sequences: list[Sequence]) -> dict[Linear, list[torch.Tensor]]:
    """Inputs of a layer's linear layers, ``[num_tokens, in]`` of each sequence."""
    inputs: dict[Linear, list[torch.Tensor]] = {}
    hooks = []
    for module in layer.modules():
        if isinstance(module, Linear):
            inputs[module] = []
            hooks.append(
                module.register_forward_pre_hook(lambda m, args: inputs[m].append(args[0].float()))
            )
    for sequence in sequences:
        sequence.through(layer)
    for hook in hooks:
        hook.remove()
    return inputs


def gather_hessians(layer: Any, sequences: list[Sequence]) -> dict[Linear, torch.Tensor]:
    """``X^T X`` of the inputs of a layer's linear layers."""
    inputs = record_inputs(layer, sequences)
    return {linear: sum(x.T @ x for x in found) for linear, found in inputs.items()}


def fold_channel_scales(layer: Any, sequences: list[Sequence], find_scales: FindScales) -> None:
    """Scale input channels, and fold the scales: into norms, into ``up_proj`` for ``down_proj``.

    Only RMSNorm and a gated MLP can take them; other layers keep their weights.
    """
    attention, mlp = layer.self_attn, layer.mlp
    places = [(attention.qkv_proj, layer.input_layernorm)]
    before_mlp = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
    places += [(getattr(mlp, "gate_up_proj", None), before_mlp)]
    for linear, norm in places:
        if linear is not None and isinstance(norm, RMSNorm):
            x = torch.cat(record_inputs(layer, sequences)[linear])
            scales = find_scales(linear.weight, x)
            linear.weight.mul_(scales)
            norm.divide(scales)
    if getattr(mlp, "gate_up_proj", None) is not None:
        x = torch.cat(record_inputs(layer, sequences)[mlp.down_proj])
        scales = find_scales(mlp.down_proj.weight, x)
        mlp.down_proj.weight.mul_(scales)
        up = mlp.gate_up_proj.weight[mlp.gate_up_proj.output_sizes["gate_proj"] :]
        up.div_(scales.unsqueeze(1))


def quantized_parts(model: DecoderModel) -> dict[str, LinearPart]:
    """The linear layers that are quantized, by their checkpoint's names: all but the head."""
    linears = model.checkpoint_linears()
    return {name: part for name, part in linears.items() if name != "lm_head"}
