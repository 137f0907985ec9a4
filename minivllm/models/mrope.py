"""M-RoPE (Qwen2-VL, Wang et al. 2024): a token's position has three parts, time, row and column.

In a text all three are the same number. A picture's tokens have a row and a column of their own, so
that 4 x 4 of them take 4 positions, not 16; what follows goes on behind the largest of them. Behind
the prompt a position is a token's place and a shift, which is never above 0.
(vLLM: MRotaryEmbedding, ``get_mrope_input_positions`` of vllm/model_executor/models/qwen2_vl.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from minivllm.models.rope import RotaryEmbedding


class Grid(NamedTuple):
    """A picture's or a video's tokens: where they begin, and how they lie."""

    offset: int
    frames: int
    rows: int
    columns: int


class MRopePositions:
    """Positions of one sequence's tokens.

    Args:
        num_prompt_tokens: of its prompt.
        grids: of the items in it, by offset.
    """

    def __init__(self, num_prompt_tokens: int, grids: Sequence[Grid]):
        pieces = []
        place = 0
        position = 0
        for offset, frames, rows, columns in grids:
            text = np.arange(position, position + offset - place)
            pieces.append(np.tile(text, (3, 1)))
            grid = np.indices((frames, rows, columns)).reshape(3, -1) + position + len(text)
            pieces.append(grid)
            place = offset + grid.shape[1]
            position = int(grid.max()) + 1
        self.shift = position - place
        text = np.arange(position, num_prompt_tokens + self.shift)
        pieces.append(np.tile(text, (3, 1)))
        self.prompt = np.concatenate(pieces, axis=1)  # [3, num_prompt_tokens]

    def axes(self, start: int, num_tokens: int) -> np.ndarray:
        """``[3, num_tokens]``: the positions of the tokens from place ``start`` on."""
        stop = start + num_tokens
        known = self.prompt[:, start:stop]
        first = max(start, self.prompt.shape[1])
        later = np.arange(first + self.shift, max(first, stop) + self.shift)
        return np.concatenate((known, np.tile(later, (3, 1))), axis=1)

    def of(self, start: int, num_tokens: int) -> list[int]:
        """One number for each of these tokens: the time, which is all there is to a text's."""
        return self.axes(start, num_tokens)[0].tolist()


class MRotaryEmbedding(RotaryEmbedding):
    """Cosines and sines; some frequencies turn by the time, others by the row or the column.

    Args:
        head_dim, rope, num_positions: of ``RotaryEmbedding``; ``rope`` has a ``mrope_section``, the
            number of frequencies that turn by each of the three.
    """

    axis: torch.Tensor  # int64 [head_dim]: the part of a position by which each number turns

    def __init__(self, head_dim: int, rope: dict, num_positions: int):
        super().__init__(head_dim, rope, num_positions)
        with torch.device("cpu"):
            sections = torch.tensor(rope["mrope_section"])
            axis = torch.arange(3).repeat_interleave(sections).repeat(2)
        self.register_buffer("axis", axis, persistent=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """One table for a step: ``[num_tokens, 2, head_dim]``, as the layers know it.

        Args:
            positions: ``[3, num_tokens]``; ``[num_tokens]`` where all three are the same.
        """
        if positions.dim() == 1:
            return super().forward(positions)
        tables = self.cos_sin_cache[positions]  # [3, num_tokens, 2, head_dim]
        axis = self.axis.expand(1, *tables.shape[1:])
        return tables.gather(0, axis)[0]


def get_rope(head_dim: int, rope: dict | None, num_positions: int) -> RotaryEmbedding | None:
    """Make the rotary embedding that a config.json asks for, if any (vLLM: ``get_rope``)."""
    if rope is None:
        return None
    kind = MRotaryEmbedding if "mrope_section" in rope else RotaryEmbedding
    return kind(head_dim, rope, num_positions)
