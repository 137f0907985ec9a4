"""Lab of notebook 19: attention of one query over K and V in int8, held to the package's cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from random import Random

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_attend_codes(query, keys, key_scales, values, value_scales, scale):
    """Attention of one query and one head over a cache in int8.

    Args:
        query: floats, as many as a key has numbers.
        keys: of each token its codes, whole numbers from -127 to 127.
        key_scales: of each token a float: its key is its codes times that.
        values: of each token its codes.
        value_scales: of each token a float: its value is its codes times that.
        scale: multiplies all scores before the softmax.

    Returns: a list of floats, as many as a value has numbers.
    """
    raise NotImplementedError


def attend_codes(query, keys, key_scales, values, value_scales, scale):
    scores = []
    for key, key_scale in zip(keys, key_scales, strict=True):
        product = sum(q * code for q, code in zip(query, key, strict=True))
        scores.append(product * key_scale * scale)
    most = max(scores)
    weights = [math.exp(score - most) for score in scores]
    total = sum(weights)
    weights = [w / total * s for w, s in zip(weights, value_scales, strict=True)]
    columns = zip(*values, strict=True)
    return [sum(w * code for w, code in zip(weights, column, strict=True)) for column in columns]


def check_attend_codes(function: Callable, seed: int) -> str:
    """Caches of one token and of several, with keys of unlike sizes."""
    rng = Random(f"lab attend_codes {seed}")
    lengths = (1, 3, 4, 7)
    for num_tokens in lengths * 15:
        _check_cache(function, rng, num_tokens)
    return f"{15 * len(lengths)} caches, equal to what minivllm's is widened to"


def _check_cache(function: Callable, rng: Random, num_tokens: int, head_dim: int = 8) -> None:
    import torch

    from minivllm.attention.quantized_kv import QuantizedKVCache

    def draw(rows: int, size: float) -> torch.Tensor:
        sizes = [size * rng.choice([0.25, 1.0, 2.0]) for _ in range(rows)]
        return torch.tensor([[rng.gauss(0, s) for _ in range(head_dim)] for s in sizes])

    numbers = torch.zeros(1, num_tokens, 1, head_dim, dtype=torch.int8)
    scales = torch.zeros(1, num_tokens, 1)
    cache = QuantizedKVCache(
        numbers,
        numbers.clone(),
        k_scale=1.0,
        v_scale=1.0,
        key_scales=scales,
        value_scales=scales.clone(),
    )
    key = draw(num_tokens, 1.0)
    value = draw(num_tokens, 1.0)
    query = draw(1, 1.0)[0]
    cache.write(key.unsqueeze(1), value.unsqueeze(1), torch.arange(num_tokens))
    given = (
        query.tolist(), cache.key.view(num_tokens, -1).tolist(), scales.flatten().tolist(),
        cache.value.view(num_tokens, -1).tolist(), cache.value_scales.flatten().tolist(),
        head_dim**-0.5,
    )  # fmt: skip
    widened = cache.widen(torch.tensor([0]), torch.float32)
    keys, values = (part[0, :, 0].double() for part in widened)
    weights = (keys @ query.double() * head_dim**-0.5).softmax(0)
    wanted = (weights @ values).tolist()
    got = call(function, *deepcopy(given))
    if not isinstance(got, (list, tuple)) or len(got) != head_dim:
        raise Fault(f"return a list of {head_dim} floats")
    for i, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        if not _close(mine, right):
            which = f"{num_tokens} tokens: number {i} is {mine}"
            raise WrongEntry(f"{which}, not yet right{_explain(list(got), given)}", f"{right:.4f}")


def _close(one, other) -> bool:
    return isinstance(one, (int, float)) and math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-5)


def _explain(got: list, given: tuple) -> str:
    """Return the mistake that leads to these numbers, where it is a known one."""
    query, keys, key_scales, values, value_scales, scale = given
    ones = [1.0] * len(keys)
    mistakes = {
        ": each score is multiplied by its key's scale": (ones, value_scales, scale),
        ": each weight is multiplied by its value's scale": (key_scales, ones, scale),
        ": codes alone are no numbers; both scales are missing": (ones, ones, scale),
        ": a key's scale is there twice": ([s * s for s in key_scales], value_scales, scale),
        ": a value's scale is there twice": (key_scales, [s * s for s in value_scales], scale),
        ": the scores' own scale is missing": (key_scales, value_scales, 1.0),
        ": keys have the values' scales, and values the keys'": (value_scales, key_scales, scale),
    }
    for why, (of_keys, of_values, factor) in mistakes.items():
        theirs = attend_codes(
            query, keys, key_scales=of_keys, values=values, value_scales=of_values, scale=factor
        )
        if all(map(_close, got, theirs)):
            return why
    return ""


LAB = FunctionLab(
    "19",
    "Write attention over K and V in int8; no code is ever multiplied by its scale.",
    "Multiply the query with a key's codes first, and the sum by the key's scale.",
    difficulty=3, minutes=15, stub=my_attend_codes, check=check_attend_codes,
)  # fmt: skip
