"""Reference sampler: one row, one token at a time, in plain Python; slow, and easily checked.

Tests hold the sampler to it, and the oracle chooses by it. It shares no code with the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from minivllm.sampling_params import SamplingParams

_NEVER = -math.inf


def draw_number(seed: int, position: int, purpose: int = 1) -> float:
    """Return the uniform number of a position: two numbers of splitmix64, one seeding the other.

    Args:
        seed: of the sequence.
        position: index of the token that it draws.
        purpose: 1 for the token itself; see ``sampling/random.py``.
    """
    x = seed
    for counter in (purpose, position):
        x = (x + counter * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        x ^= x >> 31
    return (x // 2**12 + 0.5) / 2**52


def process_logits(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Logits after masks, biases and penalties. (``logits_processors`` are left out.)

    Args:
        logits: of one row.
        params: as the processor has completed them.
        prompt, output: token ids so far.
    """
    x = list(logits)
    if params.allowed_token_ids is not None:
        x = [v if i in params.allowed_token_ids else _NEVER for i, v in enumerate(x)]
    for *begin, last in params.bad_words_token_ids:
        if output[len(output) - len(begin) :] == begin:
            x[last] = _NEVER
    if len(output) < params.min_tokens:
        for token_id in params.all_stop_token_ids:
            x[token_id] = _NEVER
    for token_id, bias in (params.logit_bias or {}).items():
        x[token_id] += bias
    for token_id in set(prompt) | set(output):
        v = x[token_id]
        r = params.repetition_penalty
        x[token_id] = v / r if v > 0 else v * r
    for token_id in set(output):
        times = output.count(token_id)
        x[token_id] -= params.frequency_penalty * times + params.presence_penalty
    return x


def filter_logits(logits: list[float], params: SamplingParams) -> tuple[dict[int, float], float]:
    """Tokens that may be drawn with their probabilities, and the margin of the filters' choice.

    Returns:
        Probabilities by token id, in the order of ids, and how much any number that decided about
        a token may be off before the other decision would be right.
    """
    x = {i: v / params.temperature for i, v in enumerate(logits) if v > _NEVER}
    best = max(x.values())
    margin = math.inf
    if params.min_p > 0:
        least = best + math.log(params.min_p)
        margin = min(margin, *(abs(v - least) for v in x.values()))
        x = {i: v for i, v in x.items() if v >= least}
    order = sorted(x, key=lambda i: (-x[i], i))
    if 0 < params.top_k < len(order):
        worst = x[order[params.top_k - 1]]
        kept = [i for i in order if x[i] >= worst]
        if len(kept) < len(order):
            margin = min(margin, worst - x[order[len(kept)]])
        order = kept
    total = sum(math.exp(x[i] - best) for i in order)
    probs = {i: math.exp(x[i] - best) / total for i in order}
    if params.top_p < 1:
        sum_of_better = 0.0
        nucleus = {}
        for i in order:
            margin = min(margin, abs(params.top_p - sum_of_better))
            if sum_of_better >= params.top_p:
                break
            nucleus[i] = probs[i]
            sum_of_better += probs[i]
        probs = {i: p / sum_of_better for i, p in nucleus.items()}
    return dict(sorted(probs.items())), margin


def choose(
    logits: list[float],
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    seed: int,
    allowed: Collection[int] | None = None,
) -> tuple[int, float]:
    """The next token, and the margin of that choice.

    The margin is how far the numbers may be off before it would be another token: for greedy the
    gap between the two best logits, for sampling the distance of the drawn number from the edges of
    its interval, and of each filter from letting one token more or fewer through. ``allowed`` is
    what a grammar leaves.
    """
    if allowed is not None:
        logits = [v if i in allowed else _NEVER for i, v in enumerate(logits)]
    x = process_logits(logits, params, prompt, output)
    if params.greedy:
        best, second = sorted(x, reverse=True)[:2]
        return x.index(best), best - second
    number = draw_number(seed, len(prompt) + len(output))
    edge = 0.0
    probs, margin = filter_logits(x, params)
    for token in probs:
        low = edge
        edge += probs[token]
        if number < edge:
            break
    return token, min(margin, number - low, edge - number)
