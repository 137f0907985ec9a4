"""Pipeline parallelism: a stage is a shorter model, with some of the layers.

The first stage has the embedding, the last one norm and head. Between two stages pass a layer's
output and the residual to add it to. (vLLM: vllm/model_executor/models/utils.py)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from minivllm.attention.step import StepAttention
from minivllm.distributed.group import Group


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

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def take_stage(model: Any, group: Group) -> None:
    """Make one stage of a whole DecoderModel, which has no memory yet.

    Args:
        model: whole, or a rank's share of it.
        group: the stages, of which this is one.

    Raises:
        ValueError: if there are more stages than layers.
    """
    names, decoder = model.checkpoint_tensors().keys(), model.model
    model.config = config = model.config.stage(group.rank, group.size)
    is_last = group.rank == group.size - 1
    start = config.start_layer
    decoder.layers = StageLayers(decoder.layers[start : start + config.num_layers], start)
    if group.rank > 0:
        decoder.embed_positions = None
        if not (is_last and config.tie_word_embeddings):  # where it is the head
            decoder.embed_tokens = None
    if not is_last:
        decoder.norm = model.lm_head = None
    model.elsewhere = model.elsewhere | (names - model.checkpoint_tensors().keys())
    model.forward = partial(_forward, model)


def _forward(
    model: Any,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    attention: StepAttention,
    hidden_states: torch.Tensor,
) -> torch.Tensor:
    """``DecoderModel.forward`` of a stage.

    Args:
        token_ids, positions, attention: as there.
        hidden_states: of the stage before, ``[2, num_tokens, hidden_size]``: its last layer's
            output, and the residual. The first stage does not read them.

    Returns:
        The same for the next stage; of the last one ``[num_tokens, hidden_size]``, after the norm.
    """
    decoder = model.model
    if model.config.start_layer == 0:
        x, residual = model.embed(token_ids, positions), None
    else:
        x, residual = hidden_states
    x, residual = decoder.run_layers(x, decoder.cos_sin(positions), attention, residual)
    if decoder.norm is None:
        return torch.stack((x, residual))
    return decoder.norm(x, residual)[0]
