"""Writing a quantized checkpoint: GPTQ's or AWQ's packed words, or int8, and config.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from minivllm.lab.quantize.rounding import QuantizedWeight
from minivllm.utils.json_files import read_json_object

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight columns each nibble of a word holds
WORD = 32  # bits


def pack(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Pack small integers along a dimension into int32 words, the first in the lowest bits."""
    words = numbers.movedim(dim, -1).unflatten(-1, (-1, WORD // bits)).to(torch.int64)
    shifts = torch.arange(0, WORD, bits)
    packed = (words << shifts).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.movedim(-1, dim).contiguous()


def gptq_tensors(name: str, weight: QuantizedWeight, bits: int) -> dict[str, torch.Tensor]:
    """Tensors of a layer in GPTQ's second format, which stores zero points as they are."""
    columns = weight.q.shape[1]
    groups = weight.scales.shape[1]
    return {
        f"{name}.qweight": pack(weight.q.T, bits, 0),
        f"{name}.qzeros": pack(weight.zeros.T, bits, 1),
        f"{name}.scales": weight.scales.T.contiguous(),
        f"{name}.g_idx": torch.arange(columns, dtype=torch.int32) // (columns // groups),
    }


def awq_tensors(name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    """Tensors of a layer in AWQ's format: eight columns of a word in an order of their own."""

    def in_order(numbers: torch.Tensor) -> torch.Tensor:
        return pack(numbers.unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1), 4, 1)

    return {
        f"{name}.qweight": in_order(weight.q.T),
        f"{name}.qzeros": in_order(weight.zeros.T),
        f"{name}.scales": weight.scales.T.contiguous(),
    }


def int8_tensors(name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    """Tensors of a layer in compressed-tensors' format of int8, whose zero point is 0."""
    return {
        f"{name}.weight": (weight.q.int() - 128).to(torch.int8),
        f"{name}.weight_scale": weight.scales.float(),
    }


def quantization_config(method: str, bits: int, group: int, sym: bool) -> dict[str, Any]:
    """The ``quantization_config`` of config.json."""
    if method == "awq":
        return {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True,
                "version": "gemm"}  # fmt: skip
    if method == "smoothquant":
        whole = {"num_bits": bits, "type": "int", "symmetric": True}
        weights = whole | {"strategy": "channel"}
        inputs = whole | {"strategy": "token", "dynamic": True}
        group_0 = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        return {"quant_method": "compressed-tensors", "format": "int-quantized",
                "ignore": ["lm_head"], "config_groups": {"group_0": group_0}}  # fmt: skip
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym,
            "desc_act": False, "lm_head": False, "checkpoint_format": "gptq_v2"}  # fmt: skip


def save_checkpoint(
    source: Path, target: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]
) -> None:
    """Write tensors and config.json; tokenizer and other small files come from the source."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".txt", ".model", ".jinja") and "index" not in file.name:
            shutil.copy(file, target / file.name)
    described = read_json_object(source / "config.json")
    described["quantization_config"] = config
    (target / "config.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
