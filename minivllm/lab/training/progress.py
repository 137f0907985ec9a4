"""Progress report of a training run: exact-match rates on small held-out sets.

Nothing is generated: an answer counts when every one of its tokens is the argmax. That is the same
as comparing the greedy continuation with the answer, as long as the model's own tokens and the
reference's agree so far; one pass over a conversation scores all its answers.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from minivllm.embedded.data.corpus import OTHER_SKILLS
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.lab.training.batches import Encoded, encode
from minivllm.lab.training.export import load_network
from minivllm.lab.training.tokenization import load_tokenizer


@torch.no_grad()
def exact_rates(
    network: Qwen2ForCausalLM, samples: Iterable[Encoded]
) -> dict[str, tuple[int, int]]:
    """Per label of the answers: how many are exactly right, and how many there are."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for sample in samples:
        ids = torch.tensor(sample.ids)
        logits = network(ids[None]).logits[0]
        for label, first, stop in sample.answers:
            best = logits[first - 1 : stop - 1].argmax(-1)
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


def progress_report(directory: Path) -> str:
    """Exact-match rates of an exported checkpoint, one line per set."""
    network = load_network(directory)
    tokenizer = load_tokenizer(directory)
    sets = {}
    for rows, count in ((4, 20), (10, 12), (30, 6)):  # of people with held-out or invented names
        shape = TableShape((rows, rows), (6, 8), (15, 15), padded_share=0.5, held_out=True)
        rngs = (random.Random(f"progress-{n}") for n in range(count))
        sets[f"{rows} rows"] = [table_conversation(rng, shape) for rng in rngs]
    sets["other skills"] = [
        draw(random.Random(f"progress-{name}-{n}"))
        for name, draw in OTHER_SKILLS.items()
        for n in range(10)
        if name in ("capital", "small talk", "tool", "json")
    ]
    return "\n".join(
        f"    {name}: {summary(exact_rates(network, (encode(tokenizer, s) for s in samples)))}"
        for name, samples in sets.items()
    )
