"""Measuring a machine: the bars of a step's parts; what fusing saves."""

import numpy as np
import pytest
import torch

from minivllm.course.asking.answers import NotYet
from minivllm.course.chA2 import exercises as chA2
from minivllm.models import ops
from minivllm.viz import time_shares


def test_time_shares_are_of_the_sum_and_the_longest_comes_first():
    figure = time_shares({"scheduler": 0.001, "products": 0.003, "nothing": 0.0})
    lines = figure.text.splitlines()
    assert lines[0] == "Where the time went: 4.0 ms in all"
    assert [line.split()[0] for line in lines[1:]] == ["products", "scheduler", "nothing"]
    assert lines[1].count("█") == 38
    assert (
        figure.alt == "Where the time went, 4.0 ms in all: products 75%, scheduler 25%, nothing 0%."
    )
    assert figure.svg.count("<rect") == 1 + 3  # the paper, and a bar for each part


@pytest.mark.parametrize("seconds", [{}, {"a": 0.0}, {"a": -1.0}, {"a": float("nan")}])
def test_time_shares_need_time(seconds):
    with pytest.raises(ValueError, match="seconds must be numbers of at least 0, one above"):
        time_shares(seconds)


def test_the_exercises_fusion_is_the_engines():
    x, residual = np.random.default_rng(1).standard_normal((2, 3, 32), dtype=np.float32)
    weight, ours = np.ones(32, dtype=np.float32), torch.tensor(residual)
    expected = ops.fused_add_rms_norm(torch.tensor(x), ours, torch.tensor(weight), 1e-5)
    output = chA2.add_norm().solve()(x, residual, weight, 1e-5)
    assert np.allclose(output, expected, atol=1e-5)
    assert np.allclose(residual, ours)


def test_numbers_are_not_bytes():
    exercise = chA2.passes(seed=1)
    size = exercise.given["bytes_per_number"]
    apart, fused = exercise.solve()
    with pytest.raises(NotYet, match="apart: these are numbers"):
        exercise.check((apart // size, fused // size))
