"""Seeded offline workloads: prompts as token ids, fixed output lengths, all submitted at once.

Only ``random.Random`` is used, so the same requests come out on any machine. W1, W2 and W4 are
those that other engines have been measured on; see ``WORKLOADS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from minivllm.utils.math_utils import cdiv
from minivllm.utils.toml_data import load_toml
from minivllm.utils.validation import check, is_int


@dataclass(frozen=True)
class BenchRequest:
    """A prompt and exactly how many tokens each of its ``n`` answers gets."""

    prompt_token_ids: list[int]
    max_tokens: int
    n: int = 1

    @property
    def sampling_params(self) -> dict:
        """Arguments of ``SamplingParams``, ours and vLLM's."""
        return {
            "n": self.n,
            "temperature": 0.0 if self.n == 1 else 1.0,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "detokenize": False,
        }


Round = list[BenchRequest]  # all asked for at once; the next round begins when all are answered


def _ids(rng: Random, count: int, vocab_size: int) -> list[int]:
    return [rng.randrange(10, vocab_size) for _ in range(count)]


def _length(rng: Random, bounds: int | list[int]) -> int:
    if isinstance(bounds, int):
        return bounds
    low, high = bounds
    return rng.randint(low, high)


def single_round(
    rng: Random,
    num_requests: int,
    vocab_size: int,
    *,
    prompt: int | list[int],
    answer: int | list[int],
    shared: Sequence[int] = (0,),
    n: int = 1,
) -> list[Round]:
    """Requests that are all asked for at once."""
    prefixes = [_ids(rng, length, vocab_size) for length in shared]
    return [
        [
            BenchRequest(
                prefixes[i % len(shared)] + _ids(rng, _length(rng, prompt), vocab_size),
                _length(rng, answer),
                n,
            )
            for i in range(num_requests)
        ]
    ]


def multi_turn(
    rng: Random,
    num_requests: int,
    vocab_size: int,
    *,
    prompt: int | list[int],
    answer: int,
    num_turns: int,
) -> list[Round]:
    """Conversations turn by turn, everybody at once.

    What the past answers said is made up, so that all engines get the same prompts.
    """
    said: list[list[int]] = [[] for _ in range(cdiv(num_requests, num_turns))]
    rounds = []
    for turn in range(num_turns):
        talking = said[: cdiv(num_requests - turn, num_turns)]
        for past in talking:
            past += _ids(rng, _length(rng, prompt), vocab_size)
        rounds.append([BenchRequest(list(past), answer) for past in talking])
        for past in talking:
            past += _ids(rng, answer, vocab_size)
    return [requests for requests in rounds if requests]


WORKLOADS = load_toml(__package__, "workloads")


def make_workload(name: str, num_requests: int | None, vocab_size: int) -> list[Round]:
    """A workload by its name.

    Args:
        name: one of ``WORKLOADS``.
        num_requests: how many; None for the usual number.
        vocab_size: ids are drawn from 10 up to this, exclusive.

    Raises:
        ValueError: for another name or less than one request.
    """
    names = ", ".join(map(repr, WORKLOADS))
    check(name in WORKLOADS, "workload", name, f"one of {names}")
    described = dict(WORKLOADS[name])
    usual = described.pop("num_requests")
    rng = Random(described.pop("seed"))
    ok = num_requests is None or is_int(num_requests, 1)
    check(ok, "num_requests", num_requests, "an integer of at least 1")
    make = multi_turn if "num_turns" in described else single_round
    return make(rng, usual if num_requests is None else num_requests, vocab_size, **described)


# -- of the scheduler alone ----------------------------------------------------------------------

BLOCK_SIZE = 16
PROMPT_TOKENS = 128
MAX_MODEL_LEN = 8192


def prompt_of(index: int, num_tokens: int = PROMPT_TOKENS) -> list[int]:
    """A prompt that shares no block with another one's."""
    return [(index * 7919 + j * 31) % 900 + 5 for j in range(num_tokens)]


def long_prompt(num_blocks: int = 4096) -> list[int]:
    """A prompt to be hashed, of ids as a large vocabulary has them."""
    rng = Random(0)
    return [rng.randrange(150_000) for _ in range(num_blocks * BLOCK_SIZE)]
