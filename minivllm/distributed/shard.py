"""Arithmetic of a division: which heads, token ids and layers a rank has.

A rank is one worker. Those of a *tensor-parallel* (tp) group share every layer, those of a
*pipeline-parallel* (pp) group have different layers, and *data-parallel* (dp) ones are replicas of
the whole model. Parts are ``slice``s with a start and a stop.
(vLLM: vllm/distributed/utils.py, vllm/model_executor/layers/vocab_parallel_embedding.py)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minivllm import envs
from minivllm.utils.math_utils import cdiv

VOCAB_PADDING = 64  # a divided vocabulary is padded to a multiple


class Coordinates(NamedTuple):
    """Place of a rank in the grid of replicas, stages and shares of a layer."""

    dp: int
    pp: int
    tp: int


def coordinates(rank: int, pp_size: int, tp_size: int) -> Coordinates:
    """Place of a rank; neighbours in a tensor-parallel group have neighbouring numbers."""
    return Coordinates(rank // (pp_size * tp_size), rank // tp_size % pp_size, rank % tp_size)


def rank_of(place: Coordinates, pp_size: int, tp_size: int) -> int:
    """Number of the rank at a place: the opposite of ``coordinates``."""
    return (place.dp * pp_size + place.pp) * tp_size + place.tp


def tp_ranks(rank: int, pp_size: int, tp_size: int) -> list[int]:
    """Ranks of the tensor-parallel group that this one is in, in order."""
    place = coordinates(rank, pp_size, tp_size)
    return [rank_of(place._replace(tp=tp), pp_size, tp_size) for tp in range(tp_size)]


def pp_ranks(rank: int, pp_size: int, tp_size: int) -> list[int]:
    """Ranks of the pipeline that this one is a stage of, the first stage first."""
    place = coordinates(rank, pp_size, tp_size)
    return [rank_of(place._replace(pp=pp), pp_size, tp_size) for pp in range(pp_size)]


def share(total: int, rank: int, size: int) -> slice:
    """One of ``size`` equal parts of ``total`` things."""
    each = total // size
    return slice(rank * each, (rank + 1) * each)


def kv_head_share(num_kv_heads: int, rank: int, size: int) -> slice:
    """Heads of K and V that a rank has: a part of them, or one that other ranks have, too."""
    if num_kv_heads >= size:
        return share(num_kv_heads, rank, size)
    head = rank // (size // num_kv_heads)
    return slice(head, head + 1)


def vocab_share(vocab_size: int, rank: int, size: int) -> slice:
    """Token ids that a rank has: an equal part of the padded vocabulary, so maybe beyond it."""
    padding = math.lcm(VOCAB_PADDING, size)
    return share(cdiv(vocab_size, padding) * padding, rank, size)


def divides(num_heads: int, num_kv_heads: int, intermediate_size: int, size: int) -> bool:
    """True if ``size`` ranks can share the layers of a model."""
    kv_heads_fit = num_kv_heads % size == 0 or size % num_kv_heads == 0
    return num_heads % size == 0 and intermediate_size % size == 0 and kv_heads_fit


def check_tensor_parallel_size(
    num_heads: int, num_kv_heads: int, intermediate_size: int, size: int
) -> None:
    """Refuse a number of ranks that cannot share the layers of a model.

    Raises:
        ValueError: naming what does not divide, and the sizes that do.
    """
    if divides(num_heads, num_kv_heads, intermediate_size, size):
        return
    fit = [
        n for n in range(1, num_heads + 1)
        if divides(num_heads, num_kv_heads, intermediate_size, n)
    ]  # fmt: skip
    sizes = f"tensor_parallel_size may be {', '.join(map(str, fit))}."
    if num_heads % size:
        raise ValueError(
            f"Total number of attention heads ({num_heads}) must be divisible by tensor parallel "
            f"size ({size}); {sizes}"
        )
    what = "intermediate_size" if intermediate_size % size else "num_key_value_heads"
    number = intermediate_size if intermediate_size % size else num_kv_heads
    raise ValueError(f"{what}: {number} is not divisible by {size}; {sizes}")


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """First layer of a stage, and the one behind its last.

    Layers are divided equally. What remains goes one each to the stages before the last, from its
    neighbour backwards: the last has the head, too. ``MINIVLLM_PP_LAYER_PARTITION`` ("3,2") says
    otherwise.

    Raises:
        ValueError: if there are more stages than layers, or the partition is not one.
    """
    if pp_size > num_hidden_layers:
        raise ValueError(
            f"pipeline_parallel_size must be at most the number of layers, {num_hidden_layers}, "
            f"got {pp_size}."
        )
    if text := envs.pp_layer_partition():
        partitions = _read_partition(text, num_hidden_layers, pp_size)
    else:
        each, rest = divmod(num_hidden_layers, pp_size)
        partitions = [each] * pp_size
        for stage in range(pp_size - 1 - rest, pp_size - 1):
            partitions[stage] += 1
    begin = sum(partitions[:pp_rank])
    return begin, begin + partitions[pp_rank]


def _read_partition(text: str, num_hidden_layers: int, pp_size: int) -> list[int]:
    try:
        partitions = [int(number) for number in text.split(",")]
    except ValueError as error:
        raise ValueError(f"Invalid partition string: {text}") from error
    if len(partitions) != pp_size:
        raise ValueError(f"{len(partitions)=} does not match {pp_size=}.")
    if sum(partitions) != num_hidden_layers:
        raise ValueError(f"{sum(partitions)=} does not match {num_hidden_layers=}.")
    if min(partitions) < 1:
        raise ValueError(f"Invalid partition string: {text}; every stage has a layer.")
    return partitions
