"""Linear method for layers of 4 bits on a GPU: words in GPTQ's layout, and the kernel for them.

A format's own method dequantizes the weight for every product, which is its definition. Here every
format's codes are brought into one layout, once after loading. (On a CPU: ``cpu/quantized.py``.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from minivllm.models.decoder import DecoderModel
from minivllm.models.encoder import EncoderModel
from minivllm.models.layers import TiedEmbeddingMethod
from minivllm.models.linear import EmbeddingMethod, Linear
from minivllm.quantization.base_config import QuantizedLinearMethod, QuantizedWeight
from minivllm.quantization.codes import Codes, codes_of_layer
from minivllm.quantization.packing import pack, unpack

_FEWEST_INPUTS = 16  # of a group: tensor cores multiply no fewer at once


def apply(model: DecoderModel | EncoderModel) -> None:
    """Let a loaded model's layers of 4 bits be multiplied by the Triton kernel.

    To be applied before ``lora.apply``, which puts its methods around those that it finds.
    """
    for module in model.modules():
        if isinstance(module, Linear):
            choose_w4a16_method(module)
    head = model.lm_head
    if head is None or not isinstance(head.quant_method, W4A16LinearMethod):
        return
    if model.config.tie_word_embeddings:  # it is in memory once
        model.model.embed_tokens.replace_method(TiedEmbeddingMethod(head))


def choose_w4a16_method(layer: Linear) -> None:
    """Let a layer be multiplied by the kernel, if it has codes of 4 bits in groups that fit."""
    if isinstance(layer.quant_method, QuantizedLinearMethod):
        codes = codes_of_layer(layer.quant_method, layer)
        if codes is not None and _fits(codes):
            layer.quant_method = W4A16LinearMethod(codes)
            layer.quant_method.process_weights_after_loading(layer)


def _fits(codes: Codes) -> bool:
    group_size = codes.q.shape[1] // codes.scales.shape[1]
    is_plain = codes.q.dtype == torch.uint8 and codes.mins is None
    return is_plain and group_size % _FEWEST_INPUTS == 0


class W4A16Weight(NamedTuple):
    """A weight as the kernel reads it: neighbouring outputs side by side."""

    words: torch.Tensor  # int32 [input_size / 8, output_size], low bits first
    scales: torch.Tensor  # [num_groups, output_size], of a float dtype
    zeros: torch.Tensor | None  # int8, as scales; None: all are 8
    order: torch.Tensor | None  # int64 [input_size] of the inputs; None: as they come


class W4A16LinearMethod(EmbeddingMethod):
    """Product with codes of 4 bits by a Triton kernel; see ``apply``."""

    def __init__(self, codes: Codes):
        zeros = None if codes.zeros is None else codes.zeros.T.contiguous()
        words = pack(codes.q, 4).T.contiguous()
        scales = codes.scales.T.contiguous()
        self.weight = W4A16Weight(words, scales, zeros=zeros, order=codes.order)

    def create_weights(self, layer: Linear) -> None:
        """No-op: the format's own method has created them."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Let the layer have this weight instead of the file's tensors."""
        for name in [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]:
            delattr(layer, name)
        for name, tensor in self.weight._asdict().items():
            if tensor is not None:
                layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        from minivllm.quantization.kernels import w4a16

        words, scales, zeros, order = self.weight
        return w4a16(x if order is None else x[:, order], words, scales, zeros, layer.bias)

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        words, scales, zeros, _ = self.weight  # an embedding's inputs are in order
        rows = 8 if zeros is None else zeros[:, token_ids].T
        codes = unpack(words[:, token_ids].T, 4)
        return QuantizedWeight(codes, scales[:, token_ids].T, rows).dequantize()
