"""Transform that lets a model's linear layers have adapters, applied once after loading.

The model's files know nothing of it: each layer gets a method around its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.config.lora import LoRAConfig
from minivllm.lora.layers import LoRALinearMethod, Rows
from minivllm.lora.metadata import LoRAMetadata
from minivllm.lora.peft import Adapter, is_in_target_modules
from minivllm.lora.pooler import LoRAPooler
from minivllm.models.decoder import DecoderModel
from minivllm.models.linear import Linear, MergedColumnParallelLinear, ParallelLMHead


def apply(model: DecoderModel, config: LoRAConfig) -> LoRAModel:
    """Prepare all linear layers but the head for adapters.

    Memory for all slots is allocated now. To be applied before ``cpu.apply``, which then chooses
    the products of what is inside.

    Raises:
        ValueError: for a model that cannot have adapters, that has been here before, or none of
            whose layers is among ``config.target_modules``.
    """
    name = type(model).__name__
    if not isinstance(model, DecoderModel):
        raise ValueError(f"lora.apply takes a DecoderModel, got {name}.")
    if not model.supports_lora:
        raise ValueError(f"{name} does not support LoRA yet.")
    if "lora" in model.transforms:
        raise ValueError(f"lora.apply has been applied to this {name}; it can be only once.")
    return LoRAModel(model, config)


class LoRAModel:
    """A model whose layers have slots for adapters."""

    def __init__(self, model: DecoderModel, config: LoRAConfig):
        self.model = model
        self.config = config
        self.rows = Rows()
        dtype = model.config.dtype
        if config.lora_dtype != "auto":
            dtype = getattr(torch, config.lora_dtype)
        layers = {
            path: module
            for path, module in model.named_modules()
            if isinstance(module, Linear)
            and not isinstance(module, ParallelLMHead)
            and is_in_target_modules(path, module, config)
        }
        if not layers:
            raise ValueError(
                f"lora_target_modules={config.target_modules} names no linear layer of this model."
            )
        self.methods: dict[str, LoRALinearMethod] = {}  # by a layer's path
        for path, layer in layers.items():
            parts = {path.rpartition(".")[2]: layer.output_size}
            if isinstance(layer, MergedColumnParallelLinear):
                parts = layer.output_sizes
            self.methods[path] = LoRALinearMethod(
                layer.quant_method,
                layer,
                parts,
                max_loras=config.max_loras,
                max_rank=config.max_lora_rank,
                dtype=dtype,
                rows=self.rows,
            )
            layer.quant_method = self.methods[path]
        self.pooler: LoRAPooler | None = None
        if model.pooler is not None and model.pooler.score is not None:
            self.pooler = LoRAPooler(model.pooler, model.config, self.rows)
            model.pooler = self.pooler
        model.transforms.append("lora")
        self.device = next(model.parameters()).device

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, in all layers."""
        return sum(method.nbytes for method in self.methods.values())

    def set_slot(self, slot: int, adapter: Adapter) -> None:
        """Copy an adapter into a slot, in all layers."""
        for path, method in self.methods.items():
            method.set_slot(slot, adapter.weights.get(path, {}))
        if self.pooler is not None:
            self.pooler.set_slot(slot, adapter.classifier)

    def set_rows(self, slots: Sequence[int], query_lens: Sequence[int]) -> None:
        """Say which rows of the next forward pass have which adapter.

        Args:
            slots: of each sequence of the flat batch; -1: the base model.
            query_lens: how many rows each has.
        """
        self.rows.slots = slots
        self.rows.metadata = LoRAMetadata.build(slots, query_lens, self.device)
