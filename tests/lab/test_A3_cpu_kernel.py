"""Notebook A3: what its exercises say is what the kernels of minivllm/cpu do."""

import pytest
import torch

from minivllm.exercises import chA3

pytest.importorskip("numba")

from minivllm.cpu.attention import decode
from minivllm.cpu.gemm import panels


@pytest.mark.parametrize("outputs", [1, panels.LANES, 2 * panels.LANES + 3])
def test_the_exercises_panels_are_the_engines(outputs):
    weight = torch.arange(outputs * 5.0).reshape(outputs, 5)
    ours = chA3.pack(seed=0).solve()(weight.tolist(), panels.LANES)
    assert ours == panels.pack(weight).tolist()


@pytest.mark.parametrize(("sums", "expected"), [(1, 64), (2, 32), (8, 8), (12, 8)])
def test_a_sum_waits_for_itself_until_there_are_enough_of_them(sums, expected):
    assert chA3.cycles(128, 8, sums, latency=4, per_cycle=2) == expected


@pytest.mark.parametrize("seed", range(20))
def test_as_many_sums_as_the_exercise_says_do_not_wait_and_fewer_do(seed):
    given = chA3.waiting(seed=seed).given
    one, enough = chA3.waiting(seed=seed).solve()
    rest = (given["latency"], given["per_cycle"])
    fewer, exact, more = (
        chA3.cycles(given["products"], given["lanes"], sums, *rest)
        for sums in (enough - 1, enough, enough + 1)
    )
    assert fewer > exact
    assert more >= -(-given["products"] // given["lanes"]) // given["per_cycle"]
    assert one == chA3.cycles(given["products"], given["lanes"], 1, *rest)


def test_the_kernels_tile_has_as_many_sums_as_the_notebook_says():
    assert decode.ROWS * decode.LANES // panels.WIDTH == 8


@pytest.mark.parametrize("seed", range(20))
def test_a_tile_that_is_best_fits_and_its_neighbours_are_told_why_not(seed):
    exercise = chA3.tile(seed=seed)
    rows, vectors = exercise.solve()
    assert "loads for each instruction" in exercise.check((rows, vectors))
    with pytest.raises(chA3.NotYet, match="registers"):
        exercise.check((rows + 1, vectors + 1))
