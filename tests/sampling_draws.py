"""Draws of a sampler against a known distribution, and requests with any parameters."""

import random

import torch

from minivllm import SamplingParams

# Points that chi-square passes once in a thousand tries, for 1, 2, 3 ... degrees of freedom.
CRITICAL = [10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88, 29.59, 31.26]
VOCAB = 12
LOGITS = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.2, 0.9, -0.1, 1.4, 0.2, -2.0]


def chi_square(counts: torch.Tensor, probs: dict[int, float]) -> float:
    n = int(counts.sum())
    return sum((int(counts[i]) - n * p) ** 2 / (n * p) for i, p in probs.items())


def anything(rng: random.Random, vocab_size: int) -> SamplingParams:
    def some(n: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(n)]

    max_tokens = rng.randint(2, 16)
    return SamplingParams(
        temperature=rng.choice([0, 0.7, 1.0, 2.0]),
        top_k=rng.choice([0, 5, 20]),
        top_p=rng.choice([1.0, 0.9]),
        min_p=rng.choice([0.0, 0.05]),
        presence_penalty=rng.choice([0.0, 1.5]),
        frequency_penalty=rng.choice([0.0, -0.5, 2.0]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        logit_bias=rng.choice([None, dict.fromkeys(some(3), 3.0)]),
        allowed_token_ids=rng.choice([None, None, some(40)]),
        stop_token_ids=some(4),
        min_tokens=rng.randint(0, max_tokens),
        max_tokens=max_tokens,
        seed=rng.randrange(1000),
    )
