"""Rules of the labs of notebook 27: a window's hit, what several kinds agree on, what is kept.

They are vLLM's, in plain numbers and lists. ``recorded_cache`` holds them to its recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.utils.math_utils import cdiv


def window_hit(found, window, block_size, alignment):
    need = cdiv(window - 1, block_size)
    end = 0
    num_found = 0
    for i in reversed(range(len(found))):
        if not found[i]:
            num_found = 0
        elif num_found or (i + 1) * block_size % alignment == 0:
            end = end if num_found else (i + 1) * block_size
            num_found += 1
            if num_found == need:
                return end
    return end if num_found else 0


def agree(lookups, num_tokens):
    longest = 0
    while True:
        asked = num_tokens
        for lookup in lookups:
            num_tokens = lookup(num_tokens)
            longest = max(longest, num_tokens)
        if num_tokens == asked:
            return num_tokens, longest if longest > num_tokens else 0


def worth_keeping(blocks, window, block_size, interval, ends):
    need = cdiv(window - 1, block_size)
    period = interval // block_size
    return [
        i
        for i in blocks
        if (period and i % period >= period - need)
        or any(end // block_size - need <= i < end // block_size for end in ends)
    ]


def full_hit(found: Sequence[bool], block_size: int, alignment: int) -> int:
    """Tokens that a group of full attention finds: from the first block on, without a gap."""
    num_found = list(found).index(False) if False in found else len(found)
    return num_found * block_size // alignment * alignment


@dataclass(frozen=True)
class Lookup:
    """Look-up of one kind: called with the most tokens that may be found, it says how many are.

    Args:
        found: for each block of the prompt, whether it can be found.
        window: None is full attention.
        block_size: of this kind.
        alignment: a hit is a multiple of this many tokens.
    """

    found: Sequence[bool]
    window: int | None
    block_size: int
    alignment: int

    def __call__(self, num_tokens: int) -> int:
        asked = self.found[: num_tokens // self.block_size]
        if self.window is None:
            return full_hit(asked, self.block_size, self.alignment)
        return window_hit(asked, self.window, self.block_size, self.alignment)
