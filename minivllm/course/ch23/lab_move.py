"""Lab of notebook 23, milestone 3: a prompt's K and V go from one engine's blocks to another's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault

NUM_MOVES = 60


def my_move(source, source_ids, target, target_ids, num_local):
    """Copy a prompt's K from the blocks of one engine into those of another.

    Args:
        source: [num_blocks, block_size, head_dim], K of the engine that has computed the prompt.
        source_ids: ids of the prompt's blocks there, in order. The last may be partly filled.
        target: K of the engine that goes on: the same shape, with another number of blocks.
        target_ids: ids of as many blocks of the same prompt in that engine.
        num_local: tokens of the prompt that this engine has found in its own prefix cache, whole
            blocks of the same size. Others may read these blocks: they are not to be written to.

    Returns: nothing; target is changed in place.
    """
    raise NotImplementedError


def move(source, source_ids, target, target_ids, num_local):
    first = num_local // source.shape[1]
    for source_id, target_id in zip(source_ids[first:], target_ids[first:], strict=True):
        target[target_id] = source[source_id]


def check_move(function: Callable, seed: int) -> str:
    import torch

    rng = Random(f"lab move {seed}")
    generator = torch.Generator().manual_seed(seed)
    for number in range(NUM_MOVES):
        size = rng.choice([2, 4])
        count = rng.randint(1, 5)
        pools = [rng.randint(count + 2, 12) for _ in range(2)]
        source, target = (torch.rand(n, size, 3, generator=generator) for n in pools)
        ids = [rng.sample(range(1, n), count) for n in pools]
        num_local = size * rng.randrange(count) if number > 5 else 0
        _check_one(function, source, ids[0], target=target, target_ids=ids[1], num_local=num_local)
    return f"{NUM_MOVES} prompts arrive bit for bit, and no other block is changed"


def _check_one(
    function: Callable, source: Any, source_ids: list, target: Any, target_ids: list, num_local: int
) -> None:
    sent = source.clone()
    mine = target.clone()
    right = target.clone()
    move(source, source_ids, right, target_ids, num_local)
    call(function, source, list(source_ids), mine, list(target_ids), num_local)
    where = f"blocks {source_ids} to {target_ids}, {num_local} tokens are there already"
    if not source.equal(sent):
        raise Fault(f"{where}: source has changed; the engine that sends still needs it")
    for block_id, (got, want) in enumerate(zip(mine, right, strict=True)):
        if got.equal(want):
            continue
        values = f"{want.flatten()[:2].tolist()}"
        raise WrongEntry(f"{where}: {_explain(block_id, target_ids, num_local, got)}", values)


def _explain(block_id: int, target_ids: list, num_local: int, got: Any) -> str:
    """Return what is wrong with a block."""
    if block_id not in target_ids:
        return f"block {block_id} of target has changed, and is none of this prompt's"
    place = target_ids.index(block_id)
    if place * got.shape[0] < num_local:
        return f"block {block_id} of target was found in the cache: others read it"
    if place == len(target_ids) - 1:
        return f"block {block_id} of target, the prompt's last, has not got what was sent"
    return f"block {block_id} of target has not got K of the prompt's block {place}"


LAB = FunctionLab(
    "23",
    "Milestone 3: write the transfer of a prompt's K from one engine's blocks to another's.",
    "Block i of the prompt has an id in each engine. Which of the blocks are to be left alone?",
    difficulty=2, minutes=15, stub=my_move, check=check_move,
)  # fmt: skip
