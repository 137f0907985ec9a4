"""Lab of notebook 20: an MLP that several ranks share, held to the model's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault
from minivllm.lab.ranks import run_ranks

if TYPE_CHECKING:
    from minivllm.distributed.recorded import RecordedGroup

SIZES = (1, 2, 3, 4)


def my_parallel_mlp(group, x, gate_up, down, bias):
    """A gated MLP on one of several ranks.

    For each token's vector x it is ``down @ (silu(gate @ x) * (up @ x)) + bias``.

    Args:
        group: has ``rank``, ``size`` and ``all_reduce(tensor)``, the sum of all ranks' tensors.
            Every rank calls this function.
        x: ``[num_tokens, hidden]``, the same on every rank.
        gate_up: ``[2 * inner, hidden]``: the rows of gate, below them those of up.
        down: ``[hidden, inner]``.
        bias: ``[hidden]``.

    Of gate's rows, of up's rows and of down's columns a rank has ``inner // size``: rank 0 the
    first ones, and so on. All others are NaN here.

    Returns: the whole MLP's output, ``[num_tokens, hidden]``, on every rank, with one all-reduce.
    """
    raise NotImplementedError


def parallel_mlp(group, x, gate_up, down, bias):
    from torch.nn.functional import silu

    inner = down.shape[1]
    each = inner // group.size
    own = slice(group.rank * each, (group.rank + 1) * each)
    gate, up = gate_up[:inner][own], gate_up[inner:][own]
    part = (silu(x @ gate.T) * (x @ up.T)) @ down[:, own].T
    if group.rank == 0:
        part = part + bias
    return group.all_reduce(part)


def check_parallel_mlp(function: Callable, seed: int) -> str:
    """MLPs of several widths, each on one rank and on more."""
    rng = Random(f"lab parallel_mlp {seed}")
    num_mlps = 8
    for number, size in product(range(num_mlps), SIZES):
        _check_mlp(function, rng, size, number)
    return f"{num_mlps} MLPs on {', '.join(map(str, SIZES))} ranks, each with one all-reduce"


def _check_mlp(function: Callable, rng: Random, size: int, number: int) -> None:
    import torch

    hidden = rng.choice([4, 6])
    inner = 12 * rng.choice([1, 2])
    num_tokens = rng.randint(1, 4)
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    x = torch.randn(num_tokens, hidden, generator=generator)
    gate_up = torch.randn(2 * inner, hidden, generator=generator)
    down = torch.randn(hidden, inner, generator=generator)
    bias = torch.randn(hidden, generator=generator)
    wanted = _the_models(x, gate_up, down, bias)
    groups: list[RecordedGroup] = []

    def run(group: RecordedGroup) -> Any:
        groups.append(group)
        return function(group, *_own_parts(group, x, gate_up, down, bias))

    got = call(run_ranks, size, run)
    where = f"MLP {number} on {size} rank{'s' * (size > 1)}"
    for group, mine in zip(sorted(groups, key=lambda g: g.rank), got, strict=True):
        if not isinstance(mine, torch.Tensor) or mine.shape != wanted.shape:
            raise Fault(f"{where}: return a tensor of shape {list(wanted.shape)}")
        if not torch.allclose(mine, wanted, rtol=1e-4, atol=1e-4):
            why = _explain(mine, group, x, gate_up=gate_up, down=down, bias=bias)
            i, j = (int(n) for n in (~torch.isclose(mine, wanted, 1e-4, 1e-4)).nonzero()[0])
            wrong = f"{where}: number {j} of token {i} on rank {group.rank} is {mine[i, j]:.4g}"
            raise WrongEntry(f"{wrong}{why}", f"{wanted[i, j]:.4g}")
        if size > 1 and len(group.operations) != 1:
            tensors = f"{len(group.operations)} tensors"
            raise Fault(f"{where}: rank {group.rank} exchanges {tensors}, and one will do")


def _the_models(x: Any, gate_up: Any, down: Any, bias: Any) -> Any:
    """Output of the model's own layers."""
    import torch

    from minivllm.models.layers import get_act_and_mul_fn
    from minivllm.models.linear import RowParallelLinear

    layer = RowParallelLinear(down.shape[1], down.shape[0], bias=True)
    layer.weight, layer.bias = (torch.nn.Parameter(p, requires_grad=False) for p in (down, bias))
    return layer(get_act_and_mul_fn("silu")(x @ gate_up.T))


def _own_parts(group: Any, x: Any, gate_up: Any, down: Any, bias: Any) -> tuple:
    """Arguments of a rank: numbers of others are NaN."""
    import torch

    inner = down.shape[1]
    others = torch.arange(inner) // (inner // group.size) != group.rank
    gate_up = gate_up.clone()
    down = down.clone()
    gate_up[torch.cat((others, others))] = torch.nan
    down[:, others] = torch.nan
    return x.clone(), gate_up, down, bias.clone()


def _explain(mine: Any, group: RecordedGroup, x: Any, gate_up: Any, down: Any, bias: Any) -> str:
    """Return the mistake that leads to this output, where it is a known one."""
    import torch

    if mine.isnan().any():
        return ": a number of another rank is in it. Gate, up and down are cut, each by itself"
    inner = down.shape[1]
    each = inner // group.size
    parts = []
    for rank in range(group.size):
        own = slice(rank * each, (rank + 1) * each)
        merged = torch.cat((gate_up[:inner][own], gate_up[inner:][own]))
        parts.append(_the_models(x, merged, down[:, own].contiguous(), bias * 0))
    total = sum(parts)
    mistaken = parts[group.rank]
    mistakes = {
        ": the bias is missing": (total,),
        ": the bias is added on every rank; the sum needs it once": (total + group.size * bias,),
        ": that is this rank's part of the sum": (mistaken, mistaken + bias),
        ": up is not gate; its rows are below": (
            _the_models(x, torch.cat((gate_up[:inner], gate_up[:inner])), down, bias),
        ),
        ": each output is a sum over the ranks, not a mean": (
            total / group.size + bias, (total + bias) / group.size, total / group.size,
        ),
    }  # fmt: skip
    for why, outputs in mistakes.items():
        if any(torch.allclose(mine, output, rtol=1e-4, atol=1e-4) for output in outputs):
            return why
    return ""


LAB = FunctionLab(
    "20",
    "Write an MLP whose matrices are divided among ranks.",
    "The cut of gate and up is by outputs, so silu and the product need nothing from others; the "
    "cut of down is by inputs, so each rank has a part of every sum. One rank adds the bias.",
    difficulty=3, minutes=15, stub=my_parallel_mlp, check=check_parallel_mlp,
)  # fmt: skip
