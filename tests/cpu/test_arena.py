"""Arena of a model's weights: huge pages where there are some, the same numbers everywhere."""

import logging
import mmap

import pytest
import torch
from helpers import make_llm

from minivllm.cpu import arena
from minivllm.cpu.arena import HUGE_PAGE, Arena
from minivllm.embedded import embedded_model_path
from minivllm.models.linear import Linear


def weights_of(llm):
    layers = [m for m in llm.llm_engine.model_runner.model.modules() if isinstance(m, Linear)]
    named = [pair for layer in layers for pair in layer.named_parameters(recurse=False)]
    return [p for name, p in named if name != "bias"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(7, dtype=torch.uint8),
        torch.ones(5, 3, dtype=torch.bfloat16),
        torch.empty(4, 2, 0, dtype=torch.uint8),
        torch.tensor(3.0),
    ],
    ids=["transposed", "bytes", "bfloat16", "empty", "a number"],
)
def test_a_copy_begins_at_a_cache_line(tensor):
    place = Arena()
    place.place(torch.zeros(3))
    copy = place.place(tensor)
    place.place(torch.full((100,), 7.0))  # what comes after does not reach into it
    assert torch.equal(copy, tensor)
    assert copy.is_contiguous()
    assert copy.data_ptr() % 64 == 0


def test_a_chunk_begins_at_a_huge_page_and_a_large_weight_has_its_own():
    place = Arena()
    first = place.place(torch.ones(10))
    large = place.place(torch.ones(arena._CHUNK + 1, dtype=torch.int8))
    assert first.data_ptr() % HUGE_PAGE == large.data_ptr() % HUGE_PAGE == 0
    assert bool(first.eq(1).all())


@pytest.mark.parametrize("case", ["floats", "codes"])
def test_weights_of_a_model_lie_side_by_side(case):
    pytest.importorskip("numba")
    llm = make_llm(
        embedded_model_path(), quantization="int4" if case == "codes" else None, max_model_len=80
    )
    weights = [w for w in weights_of(llm) if w.layout == torch.strided]
    places = sorted((w.data_ptr(), w.nbytes) for w in weights if w.nbytes)
    assert len(places) > 10
    size = sum(nbytes for _, nbytes in places)
    assert places[-1][0] - places[0][0] < size + 64 * len(places)


class NoHugePages(mmap.mmap):
    def madvise(self, option):
        raise OSError("a kernel without huge pages")


def test_without_huge_pages_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(arena.mmap, "mmap", NoHugePages)
    arena._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="minivllm"):
        for _ in range(2):
            assert torch.equal(Arena().place(torch.ones(3)), torch.ones(3))
    assert caplog.text.count("a kernel without huge pages") == 1
