"""UTF-8 byte ranges: a range of characters as a few sequences of byte ranges.

"Any character" is one byte, or two, or three, or four, each within bounds; a machine that reads
bytes must know them, since a token may end in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Iterator

LAST_CHARACTER = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # halves of UTF-16 pairs: no characters, and UTF-8 has none of them
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF)  # the last character of one, two and three bytes


def byte_sequences(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Sequences of byte ranges that spell the characters ``first`` to ``last``.

    ``byte_sequences(0, 0x7FF)`` gives ``((0, 127),)`` and ``((194, 223), (128, 191))``.

    Args:
        first, last: code points, both included.
    """
    for start, end in _same_length(first, last):
        yield from _aligned(start, end)


def _same_length(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Split a range into ranges of equal UTF-8 length, without surrogates."""
    low, high = _SURROGATES
    cuts = [*_LAST_OF_LENGTH, low - 1, high]
    for cut in sorted(cuts):
        if first <= cut < last:
            yield from _same_length(first, cut)
            first = cut + 1
    if first <= last and not low <= first <= high:
        yield first, last


def _aligned(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Split a range until the ranges of its bytes are independent of each other.

    A byte after the first holds six bits. Where the bits above them differ between ``first`` and
    ``last``, the six must run from all zeros to all ones; what sticks out is a range of its own.
    """
    low, high = chr(first).encode(), chr(last).encode()
    for i in range(1, len(low)):
        bits = (1 << 6 * i) - 1
        if first | bits < last and first & bits:
            yield from _aligned(first, first | bits)
            yield from _aligned((first | bits) + 1, last)
            return
        if first | bits < last and last & bits != bits:
            yield from _aligned(first, (last & ~bits) - 1)
            yield from _aligned(last & ~bits, last)
            return
    yield tuple(zip(low, high, strict=True))
