"""Random numbers without state: a number is a function of a seed, a position and its purpose.

No generator has to be kept, copied for a fork or wound back after a failed step: a token that is
computed again is drawn by the same number, whatever shares its batch. The function is splitmix64
with its counter given: the n-th number of the stream of a key is a hash of ``key + n * GOLDEN``.
It is integer arithmetic on the host, so all CPUs and GPUs agree on each bit.

(splitmix64: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators". vLLM:
vllm/v1/worker/gpu/sample/gumbel.py hashes seed and position, too, by Philox, to Gumbel noise)
(notebook 12)
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, odd
_MASK = 2**64 - 1


class Purpose(IntEnum):
    """Uses of a random number at a position; those of one position are independent."""

    TOKEN = 1  # draw the token there
    DRAFT = 2  # draw a draft of it
    ACCEPTANCE = 3  # accept that draft or reject it


def stream_keys(seeds: Sequence[int], purpose: Purpose) -> np.ndarray:
    """Return the key of each seed's stream of numbers, uint64 ``[n]``.

    Args:
        seeds: of the sequences, at least 0; modulo 2**64.
        purpose: what the numbers are for.
    """
    return _hash(np.array([(seed + purpose * GOLDEN) & _MASK for seed in seeds], np.uint64))


def uniform(keys: np.ndarray, positions: Sequence[int]) -> np.ndarray:
    """Return the number of each stream at its position, float64 ``[n]``, in (0, 1).

    Args:
        keys: of ``stream_keys``.
        positions: each the index of a token in its sequence, prompt included.
    """
    bits = _hash(keys + np.array(positions, np.uint64) * GOLDEN)
    return ((bits >> 12) + 0.5) * 2.0**-52  # the upper 52 bits; neither 0 nor 1


def _hash(x: np.ndarray) -> np.ndarray:
    """Mix 64-bit integers in place, one to one; each input bit changes half of the output bits."""
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    return x
