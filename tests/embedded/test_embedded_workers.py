"""Training in several processes is training in one: parts of a batch, and mean gradients."""

import random
from pathlib import Path

import pytest
import torch
from torch import nn

from minivllm.lab.training import workers
from minivllm.lab.training.batches import Encoded, batches

pytestmark = pytest.mark.slow


def endless(rng):
    while True:
        length = rng.randint(5, 40)
        yield Encoded(
            "table", [rng.randrange(1, 9999)] + [1] * (length - 1), [1.0] * length, {}, [], []
        )


def report(directory: Path) -> None:
    """Each worker's gradient alone would be its number."""
    number = workers.number()
    layer = nn.Linear(2, 1, bias=False)
    averaging = workers.averaging(layer)
    averaging(torch.full((2,), float(number))).sum().backward()
    alone = nn.Linear(2, 1)
    alone.weight.grad = torch.full((1, 2), float(number))
    workers.average_gradients(alone.parameters())  # its bias has no gradient
    batch = next(batches(endless(random.Random(3)), random.Random(4), 400))
    found = {
        "gradient": layer.weight.grad,
        "averaged": alone.weight.grad,
        "agreed": workers.agreed(10.0 + number),
        "samples": batch.ids[:, 0].tolist(),
    }
    torch.save(found, directory / f"{number}.pt")


def test_two_workers_share_batches_and_average_gradients(tmp_path):
    workers.in_workers(2, report, tmp_path)
    one, other = (torch.load(tmp_path / f"{number}.pt") for number in range(2))
    for found in (one, other):
        assert found["gradient"].tolist() == found["averaged"].tolist() == [[0.5, 0.5]]
        assert found["agreed"] == 10.0
    assert len(one["samples"]) == len(other["samples"]) > 1
    assert not set(one["samples"]) & set(other["samples"])


def test_one_worker_reads_whole_batches(tmp_path):
    workers.in_workers(1, report, tmp_path)
    found = torch.load(tmp_path / "0.pt")
    assert found["gradient"].tolist() == found["averaged"].tolist() == [[0.0, 0.0]]
    assert found["agreed"] == 10.0
