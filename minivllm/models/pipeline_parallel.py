"""Pipeline parallelism: a stage is a shorter model, with some of the layers.

The first stage has the embedding, the last one norm and head. Between two stages pass a layer's
output and the residual to add it to. (vLLM: vllm/model_executor/models/utils.py)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from minivllm.attention.step import StepAttention
from minivllm.distributed.group import Group
from minivllm.models.decoder import DecoderModel


class StageLayers(nn.ModuleList):
    """Layers of a stage, by the names that they have in the whole model.

    Args:
        layers: in order.
        start: number of the first one there.
    """

    def __init__(self, layers: Iterable[nn.Module], start: int):
        super().__init__()
        for number, layer in enumerate(layers, start):
            self.add_module(str(number), layer)

    def __getitem__(self, index: int | slice) -> Any:
        """A layer by its place in the stage, or several; torch's lists look up its name."""
        return list(self)[index]


class StageModel(DecoderModel):
    """A decoder that may be one of several stages; see ``stage_class`` and ``take_stage``."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        inputs_embeds: torch.Tensor | None = None,
        hidden_states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``DecoderModel.forward`` of a stage.

        Args:
            token_ids, positions, attention, inputs_embeds: as there; the last of the first stage.
            hidden_states: of the stage before, ``[2, num_tokens, hidden_size]``: its last layer's
                output, and the residual. The first stage does not read them.

        Returns:
            The same for the next stage; of the last one ``[num_tokens, hidden_size]``, after the
            norm.
        """
        decoder = self.model
        residual = None
        if hidden_states is None or self.config.start_layer == 0:
            x = self.embed(token_ids, positions, inputs_embeds)
        else:
            x, residual = hidden_states
        x, residual = decoder.run_layers(x, decoder.cos_sin(positions), attention, residual)
        if decoder.norm is None:
            return torch.stack((x, residual))
        return decoder.norm(x, residual)[0]


def stage_class(model_class: type[DecoderModel]) -> type[StageModel]:
    """A family's class of stages: like the family's own, but for ``forward``."""
    return type(model_class.__name__, (StageModel, model_class), {})


def take_stage(model: StageModel, group: Group) -> None:
    """Leave one stage of a whole model, which has no memory yet.

    Args:
        model: whole, or a rank's share of it.
        group: the stages, of which this is one.

    Raises:
        ValueError: if there are more stages than layers.
    """
    names = model.checkpoint_tensors().keys()
    decoder = model.model
    config = model.config.stage(group.rank, group.size)
    model.config = config
    is_last = group.rank == group.size - 1
    start = config.start_layer
    decoder.layers = StageLayers(decoder.layers[start : start + config.num_layers], start)
    if group.rank > 0:
        decoder.embed_positions = None
        if not (is_last and config.tie_word_embeddings):  # where it is the head
            decoder.register_module("embed_tokens", None)
    if not is_last:
        decoder.register_module("norm", None)
        model.lm_head = None
    model.elsewhere = model.elsewhere | (names - model.checkpoint_tensors().keys())
