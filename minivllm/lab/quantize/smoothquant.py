"""SmoothQuant: let inputs be as easy to round as weights, for products of int8 by int8 (W8A8).

A token's activations share a scale, so that one large channel leaves the others few steps of int8.
Weights have no such channels. So each channel's inputs are divided by s, and its weights multiplied
by it: the product is the same, and the range of a channel is shared out between the two. As with
AWQ the division is folded into what makes the inputs. (Xiao et al. 2023, arXiv:2211.10438)
"""

from __future__ import annotations

import torch

STRENGTH = 0.5  # 0: weights keep their range, 1: all inputs have the same


def smoothing_scales(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Scales of input channels, ``[in]``.

    Args:
        weight: ``[out, in]``, of all layers that read these inputs.
        inputs: ``[rows, in]``.
    """
    of_inputs = inputs.abs().amax(0).clamp(min=1e-4)
    of_weights = weight.abs().amax(0).clamp(min=1e-4)
    return of_inputs**STRENGTH / of_weights ** (1 - STRENGTH)
