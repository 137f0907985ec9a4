"""Random numbers without state: what they are equal to, and what they are independent of."""

import itertools
import random

import numpy as np
import pytest
import torch

from minivllm import SamplingParams
from minivllm.sampling.interface import SamplingState
from minivllm.sampling.metadata import SamplingMetadata
from minivllm.sampling.random import Purpose, stream_keys, uniform
from minivllm.sampling.reference import draw_number
from minivllm.sampling.rejection_sampler import states_to_verify

N = 20_000
NUM_CELLS = 16  # on each axis of a chi-square test
MOST = 255 + 3.5 * (2 * 255) ** 0.5  # chi-square of 255 degrees, once in some thousand tries


def numbers(seeds, positions, purpose=Purpose.TOKEN) -> np.ndarray:
    return uniform(stream_keys(seeds, purpose), positions)


def chi_square_of_pairs(first: np.ndarray, second: np.ndarray) -> float:
    """Distance of pairs from uniform in the square: numbers that are not independent are far."""
    cells = (first * NUM_CELLS).astype(int) * NUM_CELLS + (second * NUM_CELLS).astype(int)
    expected = len(first) / NUM_CELLS**2
    return float(((np.bincount(cells, minlength=NUM_CELLS**2) - expected) ** 2 / expected).sum())


def test_a_key_of_splitmix64_gives_the_published_stream():
    """The first numbers of splitmix64 with seed 1234567, as other implementations test them."""
    published = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
        16408922859458223821,
    ]  # fmt: skip
    found = uniform(np.full(5, 1234567, np.uint64), range(1, 6))
    assert found.tolist() == [((bits >> 12) + 0.5) / 2**52 for bits in published]


def test_numbers_are_those_of_the_reference_bit_by_bit():
    rng = random.Random(0)
    seeds = [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, *(rng.getrandbits(64) for _ in range(200))]
    positions = [0, 1, 2**17, *(rng.randrange(2**20) for _ in seeds[3:])]
    for purpose in Purpose:
        expected = [draw_number(*at, purpose) for at in zip(seeds, positions, strict=True)]
        assert numbers(seeds, positions, purpose).tolist() == expected


def test_numbers_are_the_same_everywhere():
    """Written down once: no library, processor or version may change a seeded text."""
    found = numbers([0, 1, 7, 2**64 - 1], [0, 1, 100, 5000])
    assert found.tolist() == [
        0.28176129772258507, 0.3681895156516696, 0.6381802486391194, 0.9997931283499836,
    ]  # fmt: skip


def test_a_number_never_reaches_0_or_1():
    keys = np.zeros(1, np.uint64)  # the hash of 0 is 0
    assert uniform(keys, [0]).tolist() == [2.0**-53]
    assert 1 - 2.0**-53 == ((2**52 - 1) + 0.5) * 2.0**-52 < 1


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("along", ["positions", "seeds", "large seeds"])
def test_neighbours_are_independent(along, purpose):
    """Numbers of one position and the next, and of seeds that differ by 1, as samples' do."""
    line = [5] * N
    if along == "positions":
        found = numbers(line, range(N), purpose)
    else:
        start = 0 if along == "seeds" else 2**63 - N // 2
        found = numbers(range(start, start + N), line, purpose)
    for distance in (1, 2, 16):
        assert chi_square_of_pairs(found[:-distance], found[distance:]) < MOST


def test_numbers_of_one_position_are_independent():
    """A draft, the decision on it, and the token."""
    token, draft, acceptance = (numbers(range(N), [9] * N, purpose) for purpose in Purpose)
    for one, other in itertools.combinations((token, draft, acceptance), 2):
        assert chi_square_of_pairs(one, other) < MOST


def test_a_pair_that_is_not_independent_is_seen():
    found = numbers(range(N), [9] * N)
    assert chi_square_of_pairs(found, (found + 0.3) % 1) > 10 * MOST


def test_a_seed_beyond_64_bits_counts_modulo_2_to_the_64():
    assert SamplingParams(seed=2**64 + 3).seed == 2**64 + 3
    assert numbers([2**64 + 3, 2**70], [4, 4]).tolist() == numbers([3, 0], [4, 4]).tolist()


def test_a_row_draws_by_its_seed_and_position_only():
    """In another batch, after a fork, and where drafts are verified before it."""
    params, cpu = SamplingParams(), torch.device("cpu")
    state = SamplingState(params, 7, [1, 2, 3], 2)
    greedy = SamplingState(SamplingParams(temperature=0), 7, [1, 2, 3], 2)
    others = [SamplingState(params, seed, [4] * seed, 1) for seed in (1, 2)]
    (alone,) = SamplingMetadata([state], 10, cpu).numbers()
    assert alone == draw_number(7, 3)
    among = SamplingMetadata([others[0], greedy, state, others[1]], 10, cpu)
    assert among.numbers().tolist() == [draw_number(1, 1), alone, draw_number(2, 2)]
    rows = states_to_verify(state, [8, 9], None)
    verifying = SamplingMetadata(rows, 10, cpu)
    assert verifying.numbers().tolist() == [draw_number(7, position) for position in (3, 4, 5)]
    state.token_ids.append(5)
    assert among.numbers()[1] == draw_number(7, 4)
