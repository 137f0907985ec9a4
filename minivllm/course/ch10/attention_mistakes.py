"""Attention, right and with a mistake: what each mistake in an online softmax leads to."""

from __future__ import annotations

import math

import torch

LOG_2 = math.log(2)


def attend(
    scores: torch.Tensor,
    values: torch.Tensor,
    tile: int,
    *,
    shrinks_sum: bool = True,
    shrinks_values: bool = True,
    subtracts: bool = True,
    keeps_sum: bool = True,
    keeps_values: bool = True,
    divides: bool = True,
) -> torch.Tensor:
    """Online softmax, tile by tile, in which steps can be left out.

    Args:
        scores: ``[rows, n]``; -inf where a row may not look.
        values: ``[n, d]``.
        tile: how many scores are taken at once.
        shrinks_sum, shrinks_values: what was summed before is multiplied by exp(old - new).
        subtracts: the largest score so far is subtracted.
        keeps_sum, keeps_values: what was summed before is kept.
        divides: the values are divided by the sum.

    Returns: ``[rows, d]``.
    """
    m_i = torch.full((len(scores), 1), float("-inf"))
    l_i = torch.zeros(len(scores), 1)
    acc = torch.zeros(len(scores), values.shape[1])
    for s, value in zip(scores.split(tile, 1), values.split(tile), strict=True):
        m_new = torch.maximum(m_i, s.max(1, keepdim=True).values)
        m_finite = m_new.nan_to_num(neginf=0) * subtracts
        p = (s - m_finite).exp()
        alpha = (m_i - m_finite).exp() if subtracts else torch.ones_like(m_i)
        l_i = keeps_sum * l_i * (alpha if shrinks_sum else 1) + p.sum(1, keepdim=True)
        acc = keeps_values * acc * (alpha if shrinks_values else 1) + p @ value
        m_i = m_new
    return acc / l_i if divides else acc


def mistakes(scores: torch.Tensor, values: torch.Tensor, tile: int) -> dict[str, torch.Tensor]:
    """By explanation, the output that this mistake leads to."""

    def wrong(**steps: bool) -> torch.Tensor:
        return attend(scores, values, tile, **steps)

    short = -scores.shape[1] % tile
    padded = torch.cat([scores, torch.zeros(len(scores), short)], 1)
    padding = torch.cat([values, torch.zeros(short, values.shape[1])])
    return {
        "a larger score came, and acc and l_i were not multiplied by exp(old - new)": wrong(
            shrinks_sum=False, shrinks_values=False
        ),
        "a larger score came, and acc was not multiplied by exp(old - new)": wrong(
            shrinks_values=False
        ),
        "a larger score came, and l_i was not multiplied by exp(old - new)": wrong(
            shrinks_sum=False
        ),
        "exp of a large score is infinite: subtract the largest score so far": wrong(
            subtracts=False
        ),
        "only the last tile counts: add it to what was summed before": wrong(
            keeps_sum=False, keeps_values=False
        ),
        "l_i has the last tile only: add it to what was summed before": wrong(keeps_sum=False),
        "acc has the last tile only: add it to what was summed before": wrong(keeps_values=False),
        "acc is not divided by l_i": wrong(divides=False),
        "positions that do not exist have the score 0, and not -inf": attend(padded, padding, tile),
        "that is the mean of the values, without scores": values.mean(0).expand(len(scores), -1),
        "that is a power of 2: take tl.exp, or multiply the scores by log2(e)": attend(
            scores * LOG_2, values, tile
        ),
        "m_i is -inf at first, and exp(new - old) infinite: alpha is exp(old - new)": torch.full(
            (len(scores), values.shape[1]), float("nan")
        ),
    }
