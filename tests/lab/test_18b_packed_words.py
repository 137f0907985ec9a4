"""Notebook 18b: figures of words, and exercises that are held to the package's own formats."""

import pytest
import torch

from minivllm.exercises import ch18b
from minivllm.lab.quantize.checkpoint import awq_tensors, gptq_tensors
from minivllm.lab.quantize.rounding import QuantizedWeight
from minivllm.quantization.gguf.types import TYPES
from minivllm.viz import bit_fields, word_tiles

SEEDS = range(5)


def test_fields_begin_at_the_lowest_bits_and_are_written_from_the_highest():
    figure = bit_fields({"a": [("s0", 6), ("s4", 2)], "b": [("s4", 4), ("m4", 4)]})
    assert figure.text.splitlines()[2:] == ["a  s4:2 s0:6", "b  m4:4 s4:4"]


def test_a_word_is_drawn_where_its_numbers_are():
    figure = word_tiles({"GPTQ": [(0, 3), (1, 3)]}, mark=[("GPTQ", "one output")])
    assert "GPTQ  0,3 1,3" in figure.text
    assert figure.text.endswith("^ GPTQ: one output")


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: bit_fields({"a": [("x", 4)], "b": [("x", 8)]}), "words must be words of the same"),
        (lambda: word_tiles({"a": [(16, 0)]}), "words\\['a'\\] must be pairs of numbers below 16"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, named):
    with pytest.raises(ValueError, match=named):
        draw()


def weight(outputs, inputs, group_size, bits):
    """Random codes and zeros of a layer."""
    generator = torch.Generator().manual_seed(0)

    def numbers(columns):
        return torch.randint(2**bits, (outputs, columns), generator=generator, dtype=torch.uint8)

    groups = inputs // group_size
    return QuantizedWeight(numbers(inputs), torch.ones(outputs, groups), numbers(groups))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_code_and_its_zero_are_where_the_exercise_says(seed):
    exercise = ch18b.place(seed)
    bits, group_size, k, n = (exercise.given[name] for name in ("bits", "group_size", "k", "n"))
    row, bit, group, column = exercise.solve()
    layer = weight(1024, 12 * group_size, group_size, bits=bits)
    tensors = gptq_tensors("a", layer, bits)
    code = tensors["a.qweight"][row, n].item() >> bit & 2**bits - 1
    zero = tensors["a.qzeros"][group, column].item() >> bits * (n % (32 // bits)) & 2**bits - 1
    assert (code, zero) == (layer.q[n, k].item(), layer.zeros[n, group].item())


def test_a_nibble_is_the_code_that_awq_put_there():
    layer = weight(8, 32, 32, 4)
    words = awq_tensors("a", layer)["a.qweight"]
    nibble = ch18b.nibble(0).solve()
    for k, word in enumerate(words[:, 0].tolist()):
        assert [nibble(word, j) for j in range(8)] == layer.q[:, k].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_are_those_that_the_words_of_these_outputs_lie_in(seed):
    """Counted word by word: a line is 16 neighbouring words of a tensor in memory."""
    exercise = ch18b.lines(seed)
    inputs, outputs, lanes = (exercise.given[name] for name in ("inputs", "outputs", "lanes"))
    gptq = torch.arange(inputs // 8 * outputs).view(inputs // 8, outputs)[:, :lanes]
    awq = torch.arange(inputs * outputs // 8).view(inputs, outputs // 8)[:, : lanes // 8]
    counted = [len((words // 16).unique()) for words in (gptq, awq)]
    assert exercise.solve() == (*counted, 4 * awq.numel() // counted[1])


def test_scales_of_six_bits_are_half_a_bit_a_weight():
    bits = {one.name: 8 * one.block_bytes / one.block_size for one in TYPES.values()}
    assert bits["Q4_K"] == bits["Q4_0"] == 4.5
