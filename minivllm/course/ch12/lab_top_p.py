"""Lab of notebook 12: the filter top_p, held to the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from minivllm.course.grading.function_lab import FunctionLab, check_tensor, shorten


def my_top_p(logits, top_p):
    """The nucleus: keep the fewest likeliest tokens that reach top_p together.

    Args:
        logits: [vocab], float64; some may be -inf already.
        top_p: above 0, at most 1.

    A token goes if those likelier than it reach top_p without it, so the likeliest one always
    stays. Among equally likely ones the smaller id counts as the likelier.

    Returns: [vocab], the logits with -inf for each token that goes.
    """
    raise NotImplementedError


def top_p(logits, top_p):
    order = logits.argsort(descending=True, stable=True)
    probs = logits.softmax(-1)[order]
    better = probs.cumsum(-1) - probs  # what likelier ones have together
    out = logits.clone()
    out[order[better >= top_p]] = float("-inf")
    return out


def check_top_p(function: Callable, seed: int) -> str:
    cases = 0
    for logits, top_p, right in _nuclei(seed):
        given = f"probabilities {shorten(logits.softmax(-1))}, top_p {top_p}"
        check_tensor(given, function, (logits.clone(), top_p), right, _explain)
        cases += 1
    return f"keeps what the engine keeps in {cases} rows, ties and masked tokens included"


def _explain(got, index: int) -> str:
    """Return the rule that a wrong entry breaks."""
    if got[index].isinf():
        return "but those before it (likelier, or first of equals) have not reached top_p"
    return "but those before it (likelier, or first of equals) have reached top_p"


def _nuclei(seed: int) -> Iterator[tuple]:
    import torch

    from minivllm.sampling.filters import apply_top_p

    rows = [[0.4, 0.3, 0.2, 0.1], [0.25] * 4, [0.1, 0.6, 0.1, 0.2], [0.0, 0.5, 0.5, 0.0]]
    rng = Random(f"lab top_p {seed}")
    rows += [[rng.random() ** 4 for _ in range(8)] for _ in range(20)]
    for row in rows:
        logits = torch.tensor(row, dtype=torch.float64).log()
        for top_p in (0.05, 0.45, 0.5, 0.8, 1.0):
            column = torch.tensor([[top_p]], dtype=torch.float64)
            yield logits, top_p, apply_top_p(logits[None], column)[0]


LAB = FunctionLab(
    "12",
    "Write the filter top_p.",
    "Sort; a token goes if the sum of those before it has reached top_p.",
    difficulty=3, minutes=20, stub=my_top_p, check=check_top_p,
)  # fmt: skip
