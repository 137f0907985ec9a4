"""Exact match without generating: an answer counts when every one of its tokens is the argmax.

That is the same as comparing the greedy continuation with the answer, as long as the model's own
tokens and the reference's agree so far; one pass over a conversation scores all its answers.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

from minivllm.embedded.training.encoding import Encoded
from minivllm.embedded.training.network import Network


@torch.no_grad()
def exact_rates(network: Network, samples: Iterable[Encoded]) -> dict[str, tuple[int, int]]:
    """Per label of the answers: how many are exactly right, and how many there are."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for sample in samples:
        ids = torch.tensor(sample.ids)
        hidden, _ = network(ids[None])
        for label, first, stop in sample.answers:
            best = network.logits(hidden[0, first - 1 : stop - 1]).argmax(-1)
            counts[label][0] += int(torch.equal(best, ids[first:stop]))
            counts[label][1] += 1
    return {label: (right, total) for label, (right, total) in sorted(counts.items())}


def rate(counts: dict[str, tuple[int, int]]) -> float:
    """The share of right answers over all labels."""
    return sum(right for right, _ in counts.values()) / sum(total for _, total in counts.values())


def summary(counts: dict[str, tuple[int, int]]) -> str:
    """One line: overall rate, then each label's."""
    parts = [f"{label} {right / total:.0%}" for label, (right, total) in counts.items()]
    return f"{rate(counts):.1%} ({', '.join(parts)})"
