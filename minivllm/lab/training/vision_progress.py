"""Progress report of the picture model's training, on scenes and text that it has not seen.

Nothing is generated: an answer counts when every one of its tokens is the argmax.
"""

import random
from collections import defaultdict

import torch
from tokenizers import Tokenizer
from transformers import LlavaForConditionalGeneration

from minivllm.embedded.data.corpus import samples
from minivllm.lab.training import curriculum
from minivllm.lab.training.batches import encode
from minivllm.lab.training.progress import summary
from minivllm.lab.training.vision_batches import Rows, stack

TEXT = curriculum.VISION_PLAN.stages[1].mixture


@torch.no_grad()
def picture_rates(
    network: LlavaForConditionalGeneration, tokenizer: Tokenizer, count: int, seed: str
) -> dict[str, tuple[int, int]]:
    """Per kind of question: how many answers are exactly right, and how many there are."""
    rng = random.Random(seed)
    rows = Rows(tokenizer)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _ in range(count):
        row = rows.draw(rng)
        batch = stack([row])
        logits = network(
            input_ids=batch.ids,
            pixel_values=batch.pixels,
            attention_mask=batch.seen,
            position_ids=batch.positions,
            use_cache=False,
        ).logits[0]
        for label, first, stop in row.answers:
            ids = batch.ids[0, first:stop]
            counts[label][0] += int(torch.equal(logits[first - 1 : stop - 1].argmax(-1), ids))
            counts[label][1] += 1
    return {label: (right, total) for label, (right, total) in sorted(counts.items())}


@torch.no_grad()
def text_rates(
    network: LlavaForConditionalGeneration, tokenizer: Tokenizer, count: int
) -> dict[str, tuple[int, int]]:
    """The same of answers to the text model's own questions."""
    source = samples(TEXT, "progress")
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _ in range(count):
        encoded = encode(tokenizer, next(source))
        ids = torch.tensor(encoded.ids)
        logits = network(input_ids=ids[None], use_cache=False).logits[0]
        for _, first, stop in encoded.answers:
            right = torch.equal(logits[first - 1 : stop - 1].argmax(-1), ids[first:stop])
            counts[encoded.skill][0] += int(right)
            counts[encoded.skill][1] += 1
    return {label: (right, total) for label, (right, total) in sorted(counts.items())}


def report(network: LlavaForConditionalGeneration, tokenizer: Tokenizer, count: int = 40) -> str:
    """Two lines: of pictures and of text."""
    seen = summary(picture_rates(network, tokenizer, count, "progress"))
    told = summary(text_rates(network, tokenizer, 12))
    return f"    pictures: {seen}\n    text: {told}"
