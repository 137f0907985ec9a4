"""From samples to batches: tokens, loss weights and pointers as token positions, then tensors."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minivllm.embedded.data.corpus import Mixture, samples
from minivllm.embedded.data.sample import Sample, Span
from minivllm.lab.training import workers
from minivllm.lab.training.pointers import PointerBatch

EXCHANGED_SHARE = 0.6


@dataclass
class Encoded:
    """A tokenized sample.

    ``weights[i]`` is the weight of predicting ``ids[i]`` (from the tokens before it).
    ``pointers[kind]`` lists ``(query, first key, end of keys)`` token positions, ``answers`` lists
    ``(label, first token, end)`` of what an evaluation scores. ``copied[i]`` tells whether
    ``ids[i]`` belongs to a row of a table, or to something that is copied.
    """

    skill: str
    ids: list[int]
    weights: list[float]
    pointers: dict[str, list[tuple[int, int, int]]]
    answers: list[tuple[str, int, int]]
    copied: list[bool]


def encode(tokenizer: Tokenizer, sample: Sample) -> Encoded:
    """Tokenize a sample and translate its character spans."""
    text = tokenizer.encode(sample.text, add_special_tokens=False)
    ids = text.ids
    starts, ends = zip(*text.offsets, strict=True)

    def tokens(span: Span) -> tuple[int, int]:
        """The range of tokens that overlap a span of characters."""
        return bisect_right(ends, span[0]), bisect_left(starts, span[1])

    weights = [0.0] * len(ids)
    for span, weight in sample.learnt:
        first, stop = tokens(span)
        weights[first:stop] = [weight] * (stop - first)
    pointers: dict[str, list[tuple[int, int, int]]] = {}
    for copy in sample.copies:
        first, stop = tokens(copy.target)
        source, source_stop = tokens(copy.source)
        if stop - first != source_stop - source or first == 0:
            continue
        steps = stop - first + copy.closes
        pointers.setdefault(copy.kind, []).extend(
            (first - 1 + step, source + step, source + step + 1) for step in range(steps)
        )
    for gather in sample.gathers:
        source, source_stop = tokens(gather.source)
        pointers.setdefault(gather.kind, []).extend(
            (query, source, min(source_stop, query + 1))
            for query in range(*tokens(gather.target))
            if query >= source
        )
    answers = [(label, *tokens(span)) for label, span in sample.answers]
    copied = [False] * len(ids)
    for span in sample.copied_spans():
        first, stop = tokens(span)
        copied[first:stop] = [True] * (stop - first)
    return Encoded(sample.skill, ids, weights, pointers=pointers, answers=answers, copied=copied)


class Exchange:
    """Exchanges the tokens of what is copied for others, so that each is copied now and then.

    Most tokens are rare in names and cells, and a token that was never copied in training comes
    out as another one. Copying does not care what a token means: the pieces of words that names
    and cells are made of (tokens of letters alone: capitalized ones, and the others) are replaced
    by random ones, the same everywhere in the sample.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = {index: tokenizer.decode([index]) for index in tokenizer.get_vocab().values()}
        letters = sorted(index for index, word in words.items() if word.isalpha())
        self.pools = [
            [index for index in letters if words[index][0].isupper() == upper]
            for upper in (False, True)
        ]
        self.pool_of = {index: pool for pool in self.pools for index in pool}

    def apply(self, rng: random.Random, encoded: Encoded) -> Encoded:
        """The sample with other tokens in place of those that occur only where words are copied.

        What is said in the prompt or in an answer beside that stays as it is.
        """
        kept = {
            token for token, copied in zip(encoded.ids, encoded.copied, strict=True) if not copied
        }
        present = set(encoded.ids)
        others = {
            token: rng.choice(self.pool_of[token])
            for token in dict.fromkeys(encoded.ids)
            if token in self.pool_of and token not in kept
        }
        others = {old: new for old, new in others.items() if new not in present}
        return replace(encoded, ids=[others.get(token, token) for token in encoded.ids])


def encoded_stream(mixture: Mixture, tokenizer: Tokenizer, seed: str) -> Iterator[Encoded]:
    """Endless training samples as tokens, with a part of their tokens exchanged."""
    rng = random.Random(f"{seed}-exchange")
    exchange = Exchange(tokenizer)
    for sample in samples(mixture, seed):
        encoded = encode(tokenizer, sample)
        yield exchange.apply(rng, encoded) if rng.random() < EXCHANGED_SHARE else encoded


@dataclass
class Batch:
    """ids and weights [batch, length]; short samples are padded at the right with weight 0."""

    ids: Tensor
    weights: Tensor
    pointers: dict[str, PointerBatch]
    skills: list[str]


def _pointer_batch(rows: list[list[tuple[int, int, int]]], most: int) -> PointerBatch:
    """Pad each sample's pointers to the same number."""
    most = min(most, max(len(row) for row in rows))
    table = torch.zeros(len(rows), most, 3, dtype=torch.long)
    valid = torch.zeros(len(rows), most, dtype=torch.bool)
    for index, row in enumerate(rows):
        if row:
            table[index, : len(row[:most])] = torch.tensor(row[:most])
            valid[index, : len(row)] = True
    return PointerBatch(*table.unbind(-1), valid)


def collate(samples: list[Encoded], rng: random.Random, most_pointers: int = 96) -> Batch:
    """Stack samples; at most `most_pointers` of each kind per sample are kept, at random."""
    length = max(len(sample.ids) for sample in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    weights = torch.zeros(len(samples), length)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        weights[row, : len(sample.ids)] = torch.tensor(sample.weights)
    kinds = sorted({kind for sample in samples for kind in sample.pointers})
    pointers = {}
    for kind in kinds:
        rows = [list(sample.pointers.get(kind, [])) for sample in samples]
        for row in rows:
            rng.shuffle(row)
        pointers[kind] = _pointer_batch(rows, most_pointers)
    return Batch(ids, weights, pointers, skills=[sample.skill for sample in samples])


def batches(
    source: Iterator[Encoded], rng: random.Random, tokens: int, pool: int = 12
) -> Iterator[Batch]:
    """Batches of about `tokens` tokens over all workers, each of samples of similar length.

    A pool of several batches' worth of samples is sorted by length and cut; the cuts are then
    given out in random order. All workers draw the same samples, and each one takes its share.
    """
    number = workers.number()
    count = workers.count()
    while True:
        samples = []
        total = 0
        while total < pool * tokens:
            samples.append(next(source))
            total += len(samples[-1].ids)
        samples.sort(key=lambda sample: len(sample.ids))
        cuts: list[list[Encoded]] = [[]]
        for group in zip(*[iter(samples)] * count, strict=False):
            if cuts[-1] and (len(cuts[-1]) + 1) * count * len(group[-1].ids) > tokens:
                cuts.append([])
            cuts[-1].append(group[number])
        rng.shuffle(cuts)
        for cut in cuts:
            yield collate(cut, random.Random(f"{rng.random()}-{number}"))
