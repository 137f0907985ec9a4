"""Lab of notebook 11: the merge of split-KV, held to the plain formula."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from minivllm.course.grading.function_lab import FunctionLab, check_tensor, shorten


def my_merge(results, lse):
    """Attention over all parts of a sequence, from what each part left.

    Args:
        results: [num_parts, head_dim], each part's softmax times its values.
        lse: [num_parts], the log of each part's sum of exps; -inf for a part without keys.

    Returns: [head_dim].
    """
    raise NotImplementedError


def merge(results, lse):
    weights = (lse - lse.max()).exp()
    return weights / weights.sum() @ results


def check_merge(function: Callable, seed: int) -> str:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, cuts, sharp in (
        ("two parts", (0, 5, 12), 1.0),
        ("four parts", (0, 3, 4, 9, 12), 1.0),
        ("sums of exps beyond what a number can hold", (0, 3, 7, 12), 1000.0),
        ("an empty part", (0, 5, 5, 12), 1.0),
    ):
        scores = torch.randn(12, generator=generator, dtype=torch.float64) * sharp
        values = torch.randn(12, 6, generator=generator, dtype=torch.float64)
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        results = torch.stack([scores[part].softmax(0) @ values[part] for part in parts])
        lse = torch.stack([scores[part].logsumexp(0) for part in parts])
        check_tensor(
            f"{name}, lse {shorten(lse)}",
            function,
            (results, lse),
            scores.softmax(0) @ values,
            lambda got, _, results=results: _explain(got, results),
        )
    return "equal to attention over all keys at once, empty parts and large sums included"


def _explain(got, results) -> str:
    """Return the mistake that a wrong merge was made with, as far as it can be seen."""
    if got.isnan().any() or got.isinf().any():
        return "since exp of a large lse is infinite: subtract the largest one first"
    if got.allclose(results.mean(0)):
        return "the mean of the parts; a part weighs exp(lse)"
    if (got > results.amax(0) + 1e-9).any() or (got < results.amin(0) - 1e-9).any():
        return "and not between the parts: weights add up to 1"
    return "but a part weighs exp(lse) of the sum of all exp(lse)"


LAB = FunctionLab(
    "11",
    "Write the merge of split-KV.",
    "A part weighs exp(lse); take the largest lse out before exp.",
    difficulty=2, minutes=15, stub=my_merge, check=check_merge,
)  # fmt: skip
