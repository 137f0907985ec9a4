"""GEMM with a weight in panels: each lies in memory in the order in which a tile reads it.

A tile of the product (``microkernel.py``) has a few rows and as many columns as a panel. It
reads the panel from one end to the other, where a weight as it is in a checkpoint would be read a
few elements here and a few there. Libraries bring it into such an order in every call; here that is
done once. 16-bit elements stay so, and are widened in registers. Where a processor has instructions
for pairs of bfloat16 (AVX512-BF16), rows of bfloat16 are multiplied as they are: that is twice as
many products, and the results are rounded in registers, too. The other rows of a batch change
nothing in how a row is added up.

(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008)

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from minivllm.cpu.compiled import narrow, parallel_kernel, part_of_kernel
from minivllm.cpu.gemm.microkernel import WIDTH, micro_kernel
from minivllm.cpu.sharing import shared_range
from minivllm.models.product import returns_product
from minivllm.utils.tensors import as_numpy, as_tensor

WORTH_SHARING = 2**20  # multiply-adds that are worth several threads: some 20 us of work
# Of a tile: its sums, a row of the panel and an element of the left one fit into the registers.
ROWS, VECTORS = (4, 4) if WIDTH == 16 else (6, 2)
LANES = VECTORS * WIDTH
DEPTH = 256  # rows of a panel that stay in the second cache while many tiles read them
TASK = 32 * ROWS  # rows of x
_NO_BIAS: np.ndarray = np.empty(0, np.float32)
_tile, _pair, _single = (micro_kernel(rows, VECTORS) for rows in (ROWS, 2, 1))


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack ``[output, input]`` into one panel after the other, ``[output * input]``.

    The last one is narrower. A panel is ``[input, LANES]``.
    """
    whole = len(weight) // LANES * LANES
    packed = weight.new_empty(weight.numel())
    panels, rest = packed.split([whole * weight.size(1), weight[whole:].numel()])
    panels.view(-1, weight.size(1), LANES).copy_(weight[:whole].unflatten(0, (-1, LANES)).mT)
    rest.view(weight.size(1), -1).copy_(weight[whole:].T)
    return packed


def pack_pairs(weight: torch.Tensor) -> torch.Tensor:
    """Pack bfloat16 ``[output, input]`` as ``pack`` does, with pairs of inputs as its numbers.

    Where the last one is alone, a zero makes it a pair.
    """
    even = pad(weight, (0, 1)) if weight.size(1) % 2 else weight.contiguous()
    return pack(even.view(torch.int32)).view(torch.bfloat16)


def unpack_rows(panels: torch.Tensor, input_size: int, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a weight in panels, ``[n, input_size]``, by their numbers, int64 ``[n]``."""
    numbers = rows.numpy()  # numpy takes a third of torch's time for a few of them
    lanes = numbers % LANES
    firsts = numbers - lanes
    widths = np.minimum(panels.numel() // input_size - firsts, LANES)  # of their panels
    places = (firsts * input_size + lanes)[:, None] + widths[:, None] * np.arange(input_size)
    return as_tensor(as_numpy(panels)[places], panels.dtype)


def unpack_pairs(panels: torch.Tensor, input_size: int, rows: torch.Tensor) -> torch.Tensor:
    """``unpack_rows`` of pairs: bfloat16."""
    pairs = unpack_rows(panels.view(torch.int32), -(-input_size // 2), rows)
    return pairs.view(torch.bfloat16)[:, :input_size]


def multiply(
    x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, output_size: int
) -> torch.Tensor:
    """``x @ weight.T + bias``, ``[n, output_size]``, in float32 for panels of any dtype.

    If x is bfloat16, so is the result, and the panels are of pairs (``HAS_BFLOAT16``).
    """
    rows = as_numpy(x.contiguous())
    output = multiply_arrays(rows, as_numpy(panels), bias_array(bias), output_size)
    return as_tensor(output, x.dtype)


@returns_product
def multiply_arrays(
    x: np.ndarray, panels: np.ndarray, bias: np.ndarray, output_size: int
) -> np.ndarray:
    """Do what ``multiply`` does, in arrays; the bias is float32."""
    output = np.empty((len(x), output_size), x.dtype)
    if x.dtype == np.uint16:
        pairs = np.pad(x, ((0, 0), (0, 1))) if x.shape[1] % 2 else x
        x, panels = pairs.view(np.uint32), panels.view(np.uint32)
    _multiply(len(x) * panels.size, output, x, panels, bias)
    return output


def bias_array(bias: torch.Tensor | None) -> np.ndarray:
    """Bias for ``multiply_arrays``, float32 ``[output_size]``; empty for none."""
    return _NO_BIAS if bias is None else bias.float().numpy()


@parallel_kernel(WORTH_SHARING)
def _multiply(share, output, x, panels, bias):
    num_panels = -(-output.shape[1] // LANES)
    for task in shared_range(share, -(-len(x) // TASK) * num_panels):
        begin, first = task // num_panels * TASK, task % num_panels * LANES
        _multiply_panel(output[begin : begin + TASK], x[begin : begin + TASK], panels, bias, first)


@part_of_kernel
def _multiply_panel(output, rows, panels, bias, first):
    """Multiply rows by the panel of the columns from ``first`` on."""
    depth, place = rows.shape[1], output[:, first : first + LANES]
    sums, size = begin_sums(place, bias, first), place.shape[1]
    panel = panels[first * depth : (first + size) * depth].reshape(depth, size)
    if size < LANES:  # the last one is narrower than a tile
        wide = np.zeros((depth, LANES), panels.dtype)
        copy(wide, panel)
        panel = wide
    # Sums that are to be rounded stay in the registers until then.
    step = DEPTH if sums.itemsize == 4 else depth
    for k in range(0, depth, step):
        multiply_piece(sums, rows[:, k:], panel[k : k + step], len(bias) > 0 or k > 0)
    if size < LANES:
        copy(place, sums[:, :size])


@part_of_kernel  # a call for each panel would cost small products 5 %
def begin_sums(place, bias, first):
    """Begin the sums of the columns from ``first`` on, with the bias if there is one.

    They are made in their place. Those of the last panel may need more columns than that has.
    """
    sums, size = place, place.shape[1]
    if size < LANES:
        sums = np.empty((len(place), LANES), place.dtype)[:, :LANES]
    if len(bias) > 0:
        for r in range(len(sums)):
            for c in range(size):
                sums[r, c] = narrow(bias[first + c], sums)
    return sums


@part_of_kernel
def multiply_piece(sums, rows, piece, adds):
    """Multiply rows by a piece of a panel, tile by tile; ``adds=False`` begins the sums at 0."""
    r = 0
    while r + ROWS <= len(rows):
        _tile(sums[r:], rows[r:], piece, len(piece), adds)
        r += ROWS
    while r + 2 <= len(rows):
        _pair(sums[r:], rows[r:], piece, len(piece), adds)
        r += 2
    if r < len(rows):
        _single(sums[r:], rows[r:], piece, len(piece), adds)


@part_of_kernel
def copy(left, right):
    """Copy: ``left = right``, without an error message that takes numba seconds to compile."""
    for r in range(len(right)):
        for c in range(right.shape[1]):
            left[r, c] = right[r, c]
