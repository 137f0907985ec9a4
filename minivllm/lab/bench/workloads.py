"""Seeded offline workloads: prompts as token ids, fixed output lengths, all submitted at once.

Only ``random.Random`` is used, so the same requests come out on any machine. W1, W2 and W4 are
those that other engines have been measured on; see ``WORKLOADS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from minivllm.utils.math_utils import cdiv
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


def nano(num_requests: int, vocab_size: int) -> list[Round]:
    """nano-vllm's: 100 to 1024 tokens in and out."""
    rng = Random(0)
    return [
        [
            BenchRequest(_ids(rng, rng.randint(100, 1024), vocab_size), rng.randint(100, 1024))
            for _ in range(num_requests)
        ]
    ]


def w1(num_requests: int, vocab_size: int, most_out: int = 128) -> list[Round]:
    """Prompts of 32 to 256 tokens that share nothing, 16 to ``most_out`` tokens out."""
    rng = Random(1234)
    return [
        [
            BenchRequest(_ids(rng, rng.randint(32, 256), vocab_size), rng.randint(16, most_out))
            for _ in range(num_requests)
        ]
    ]


def w2(num_requests: int, vocab_size: int) -> list[Round]:
    """All share 512 tokens, then 32 of their own; 16 out."""
    rng = Random(5678)
    shared = _ids(rng, 512, vocab_size)
    return [[BenchRequest(shared + _ids(rng, 32, vocab_size), 16) for _ in range(num_requests)]]


def w4(num_requests: int, vocab_size: int) -> list[Round]:
    """Prompts of 2,000 tokens that share nothing, 16 out."""
    rng = Random(9012)
    return [[BenchRequest(_ids(rng, 2000, vocab_size), 16) for _ in range(num_requests)]]


def shared_prefix(num_requests: int, vocab_size: int) -> list[Round]:
    """Four system prompts of 256 tokens in turn, then 16 to 64 of their own; 32 out."""
    rng = Random(1)
    systems = [_ids(rng, 256, vocab_size) for _ in range(4)]
    return [
        [
            BenchRequest(systems[i % 4] + _ids(rng, rng.randint(16, 64), vocab_size), 32)
            for i in range(num_requests)
        ]
    ]


def multi_turn(num_requests: int, vocab_size: int, num_turns: int = 4) -> list[Round]:
    """Conversations of four turns, each with all that was said before; 32 tokens out.

    Turn by turn, everybody at once. What the past answers said is made up, so that all engines get
    the same prompts.
    """
    rng = Random(2)
    said: list[list[int]] = [[] for _ in range(cdiv(num_requests, num_turns))]
    rounds = []
    for turn in range(num_turns):
        talking = said[: cdiv(num_requests - turn, num_turns)]
        for past in talking:
            past += _ids(rng, rng.randint(16, 64), vocab_size)
        rounds.append([BenchRequest(list(past), 32) for past in talking])
        for past in talking:
            past += _ids(rng, 32, vocab_size)
    return [requests for requests in rounds if requests]


def n_samples(num_requests: int, vocab_size: int) -> list[Round]:
    """Prompts of 64 to 256 tokens, four samples of 32 tokens each."""
    rng = Random(3)
    return [
        [
            BenchRequest(_ids(rng, rng.randint(64, 256), vocab_size), 32, n=4)
            for _ in range(num_requests)
        ]
    ]


WORKLOADS: dict[str, tuple[Callable[[int, int], list[Round]], int]] = {  # and how many requests
    "nano": (nano, 256),
    "w1": (w1, 64),
    "w1-short": (partial(w1, most_out=64), 16),  # for larger models
    "w2": (w2, 64),
    "w4": (w4, 4),
    "shared-prefix": (shared_prefix, 64),
    "multi-turn": (multi_turn, 64),
    "n-samples": (n_samples, 16),
}


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
    make, usual = WORKLOADS[name]
    ok = num_requests is None or is_int(num_requests, 1)
    check(ok, "num_requests", num_requests, "an integer of at least 1")
    return make(usual if num_requests is None else num_requests, vocab_size)


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
