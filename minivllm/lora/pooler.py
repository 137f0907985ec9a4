"""LoRAPooler: a classifier whose last layer an adapter brings along, for the rows of its own.

PEFT trains such a layer whole (``modules_to_save``). (vLLM: ClassificationHeadWithLoRA,
vllm/lora/layers/classifier.py)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from minivllm.lora.layers import Rows
from minivllm.models.model_config import ModelConfig
from minivllm.pooling.metadata import PoolingMetadata
from minivllm.pooling.methods import Rows as PooledRows
from minivllm.pooling.pooler import Pooler


class LoRAPooler(nn.Module):
    """A pooler around another: adapters that have a classifier have a pooler of their own.

    Args:
        base: of the model, with a classifier.
        config: of the model.
        rows: which sequences of the step have which slot.
    """

    def __init__(self, base: Pooler, config: ModelConfig, rows: Rows):
        super().__init__()
        self.base = base
        self.config = config
        self.rows = rows
        assert base.score is not None, "there is a classifier to replace"
        self.score = base.score
        self.poolers: dict[int, Pooler] = {}  # by slot

    def set_slot(self, slot: int, classifier: Mapping[str, torch.Tensor]) -> None:
        """Copy an adapter's classifier into a slot; without one it has the model's."""
        self.poolers.pop(slot, None)
        if classifier:
            score = copy.deepcopy(self.score)
            for name, parameter in score.named_parameters():
                parameter.copy_(classifier[name])
            self.poolers[slot] = Pooler(self.config, score)

    def forward(self, hidden: torch.Tensor, metadata: PoolingMetadata) -> PooledRows:
        """Numbers of each sequence as ``Pooler`` has them, by the classifier of its adapter."""
        together: dict[Pooler, list[int]] = {}
        for index, slot in enumerate(self.rows.slots):
            together.setdefault(self.poolers.get(slot, self.base), []).append(index)
        found: PooledRows = [None] * len(self.rows.slots)
        chunks = hidden[: sum(metadata.query_lens)].split(metadata.query_lens)
        for pooler, indices in together.items():
            rows = torch.cat([chunks[i] for i in indices])
            for index, row in zip(indices, pooler(rows, metadata.of(indices)), strict=True):
                found[index] = row
        return found
