"""Batches of encoded samples: padding, pointer tensors, and grouping by length."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.embedded.training import workers
from minivllm.embedded.training.encoding import Encoded
from minivllm.embedded.training.pointers import PointerBatch


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
    """Stack samples; of each kind of pointer, at most so many per sample are kept, at random."""
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
    return Batch(ids, weights, pointers, [sample.skill for sample in samples])


def batches(
    source: Iterator[Encoded], rng: random.Random, tokens: int, pool: int = 12
) -> Iterator[Batch]:
    """Batches of about `tokens` tokens over all workers, each of samples of similar length.

    A pool of several batches' worth of samples is sorted by length and cut; the cuts are then
    given out in random order. All workers draw the same samples, and each one takes its share.
    """
    number, count = workers.number(), workers.count()
    while True:
        samples, total = [], 0
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
