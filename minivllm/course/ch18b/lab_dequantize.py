"""Lab of notebook 18b: the weights in GPTQ's words, held to the package's own format."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_dequantize(qweight, qzeros, scales, v1):
    """Weights of a layer that GPTQ packed in 4 bits.

    Args:
        qweight: words of 32 bits, signed. qweight[i][n] holds inputs 8 * i to 8 * i + 7 of output
            n, the first in the lowest 4 bits.
        qzeros: qzeros[g][m] holds the zeros of outputs 8 * m to 8 * m + 7 in group g.
        scales: scales[g][n] is a float. A row's inputs are cut into len(scales) equal groups.
        v1: whether each stored zero is one less than the zero that is meant.

    Returns: a list with a row for each output, of one float for each input.
    """
    raise NotImplementedError


def dequantize(qweight, qzeros, scales, v1):
    num_inputs, num_outputs = 8 * len(qweight), len(qweight[0])
    group_size = num_inputs // len(scales)
    weight = []
    for n in range(num_outputs):
        row = []
        for k in range(num_inputs):
            code = qweight[k // 8][n] >> 4 * (k % 8) & 15
            g = k // group_size
            zero = (qzeros[g][n // 8] >> 4 * (n % 8) & 15) + v1
            row.append((code - zero) * scales[g][n])
        weight.append(row)
    return weight


def check_dequantize(function: Callable, seed: int) -> str:
    """Layers of both versions, with one group and with several."""
    rng = Random(f"lab dequantize {seed}")
    sizes = ((2, 1, 8), (4, 2, 8), (4, 4, 16))
    layers = [(v1, *size) for v1 in (False, True) for size in sizes] * 10
    for v1, words, groups, outputs in layers:
        qweight = _words(rng, words, outputs, 15)
        qzeros = _words(rng, groups, outputs // 8, 14)
        scales = [[rng.randint(1, 64) / 64 for _ in range(outputs)] for _ in range(groups)]
        _check_layer(function, qweight, qzeros, scales, v1)
    return f"{len(layers)} layers of v1 and v2, equal to those that minivllm reads"


def _words(rng: Random, rows: int, columns: int, most: int) -> list[list[int]]:
    """Signed words of eight codes from 0 to ``most``."""
    words = []
    for _ in range(rows * columns):
        word = sum(rng.randint(0, most) << 4 * i for i in range(8))
        words.append(word - 2**32 if word >= 2**31 else word)
    return [words[i * columns : (i + 1) * columns] for i in range(rows)]


def _copied(matrix: list[list]) -> list[list]:
    return [list(row) for row in matrix]


def _check_layer(function: Callable, qweight, qzeros, scales, v1: bool) -> None:
    import torch

    from minivllm.quantization.gptq import GPTQScheme

    tensors = {
        "qweight": torch.tensor(qweight, dtype=torch.int32),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": torch.tensor(scales),
    }
    scheme = GPTQScheme(4, 8 * len(qweight) // len(scales), sym=False, v1=v1)
    wanted = scheme.unpack(tensors).dequantize().tolist()
    got = call(function, _copied(qweight), _copied(qzeros), _copied(scales), v1)
    shape = f"{len(wanted)} rows (outputs) of {len(wanted[0])} floats (inputs)"
    if not isinstance(got, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in got):
        raise Fault(f"return a list of {shape}")
    if len(got) != len(wanted) or any(len(row) != len(wanted[0]) for row in got):
        raise Fault(f"return {shape}, yours has {len(got)} rows")
    got = [list(row) for row in got]
    for n, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        for k, (one, other) in enumerate(zip(mine, right, strict=True)):
            if one != other:
                which = f"{'v1' if v1 else 'v2'}: output {n}, input {k} is {one}"
                why = _explain(got, qweight, qzeros, scales=scales, v1=v1)
                raise WrongEntry(f"{which}, not yet right{why}", f"{other}")


def _explain(got: list, qweight: list, qzeros: list, scales: list, v1: bool) -> str:
    """Return the mistake that leads to these numbers, where it is a known one."""

    def turned(rows: list[list[int]]) -> list[list[int]]:
        """The same words with their nibbles in the opposite order."""
        return [
            [sum((word >> 4 * i & 15) << 28 - 4 * i for i in range(8)) for word in row]
            for row in rows
        ]

    mistakes = {
        ": each zero is one more than what v1 stores": (qweight, qzeros, scales, False),
        ": v2 stores zeros as they are": (qweight, qzeros, scales, True),
        ": the first input is in the lowest bits": (turned(qweight), qzeros, scales, v1),
        ": a group's zeros are packed, too, the first in the lowest bits": (
            qweight, turned(qzeros), scales, v1,
        ),
        ": each group of inputs has its scale and zero": (
            qweight, qzeros[:1] * len(qzeros), scales[:1] * len(scales), v1,
        ),
    }  # fmt: skip
    return next((why for why, given in mistakes.items() if dequantize(*given) == got), "")


LAB = FunctionLab(
    "18b",
    "Write what the words of a GPTQ checkpoint mean.",
    "Begin with one weight: its word, its 4 bits in it, its group; then zero and scale.",
    difficulty=2, minutes=15, stub=my_dequantize, check=check_dequantize,
)  # fmt: skip
