"""AWQ: scale up the input channels that matter most before rounding.

A channel that is large in the inputs makes errors of its weights large. Its weights times s, and
its inputs divided by s, give the same product, but rounding hurts these weights s times less. The
division is folded into whatever makes the inputs: a norm's weight, or the rows of ``up_proj``. So
nothing of it is left when the model runs. (Lin et al. 2024, arXiv:2306.00978)
"""

from __future__ import annotations

import torch

from minivllm.lab.quantize.rounding import round_to_nearest

GRID = 20  # strengths to try, from 0 (no scaling) up to 1 (by all of the mean magnitude)
MOST_ROWS = 2048  # of the inputs that a try is judged by


def find_channel_scales(
    weight: torch.Tensor, inputs: torch.Tensor, bits: int, group: int
) -> torch.Tensor:
    """Scales of input channels, ``[in]``, with which rounding changes the products least.

    Args:
        weight: ``[out, in]``, of all layers that read these inputs.
        inputs: ``[rows, in]``.
    """
    magnitude = inputs.abs().mean(0).clamp(min=1e-4)
    inputs = inputs[:: 1 + len(inputs) // MOST_ROWS]
    wanted = inputs @ weight.T
    best = torch.ones_like(magnitude)
    least = float("inf")
    for step in range(GRID):
        scales = magnitude ** (step / GRID)
        scales /= (scales.max() * scales.min()).sqrt()
        rounded = round_to_nearest(weight * scales, bits, group, sym=False).dequantize() / scales
        error = float((inputs @ rounded.T - wanted).square().sum())
        if error < least:
            best = scales
            least = error
    return best
