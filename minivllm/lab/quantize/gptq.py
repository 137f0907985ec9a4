"""GPTQ: quantize column by column, and let later columns make up for each one's error.

What counts is not the weight but its products with inputs. Their squared error is a quadratic form
of the weight's error, with the matrix ``H = X^T X`` of the inputs. When a column is rounded, the
others can move to where the form is smallest again: along a row of the Cholesky factor of ``H``'s
inverse. (Frantar et al. 2023, arXiv:2210.17323)
"""

from __future__ import annotations

import torch

from minivllm.lab.quantize.rounding import QuantizedWeight, find_scale_and_zero, round_to_grid

DAMPING = 0.01  # of the mean diagonal: inputs that are nearly always 0 give no grip


def gptq(
    weight: torch.Tensor, hessian: torch.Tensor, bits: int, group: int, sym: bool
) -> QuantizedWeight:
    """Quantize a weight ``[out, in]``, given ``X^T X`` of its inputs, float32 ``[in, in]``."""
    w = weight.float().clone()
    factor = inverse_factor(hessian)
    parts = []
    for begin in range(0, w.shape[1], group):
        end = min(begin + group, w.shape[1])
        scale, zero = find_scale_and_zero(w[:, begin:end], bits, sym)
        columns = []
        for k in range(begin, end):
            q = round_to_grid(w[:, k : k + 1], scale, zero, bits=bits)
            error = (w[:, k : k + 1] - (q - zero) * scale) / factor[k, k]
            w[:, k + 1 :] -= error * factor[k, k + 1 :]
            columns.append(q)
        parts.append((torch.cat(columns, 1), scale, zero))
    q, scales, zeros = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return QuantizedWeight(q.to(torch.uint8), scales.half(), zeros.to(torch.uint8))


def inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """Upper Cholesky factor of the inverse of a damped ``X^T X``."""
    diagonal = hessian.diagonal()
    damped = hessian + DAMPING * diagonal.mean().clamp(min=1e-6) * torch.eye(len(hessian))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
