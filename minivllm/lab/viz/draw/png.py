"""The dark twin of a PNG with few colours: another table of them, and the same pixels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from minivllm.lab.viz.draw.palette import KEPT, ON_LIGHT, dark

SIGNATURE = b"\x89PNG\r\n\x1a\n"
NEAR = 12  # a full colour may have been rounded by so much in each of red, green and blue


def dark_png(png: bytes) -> bytes:
    """The picture on dark paper: each colour of its table for its partner.

    A picture without a table, such as a photograph, stays as it is.
    """
    chunks = dict(_chunks(png)) if png.startswith(SIGNATURE) else {}
    if b"PLTE" not in chunks:
        return png
    table = chunks[b"PLTE"]
    triples = (table[i : i + 3] for i in range(0, len(table), 3))
    swapped = b"".join(_partner(triple) for triple in triples)
    parts = [(kind, swapped if kind == b"PLTE" else data) for kind, data in _chunks(png)]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def _partner(colour: bytes) -> bytes:
    """The same for a full colour, which no page changes; light and dark greys change places."""
    if max(colour) - min(colour) <= NEAR:
        grey = min(max(colour[1], 2), 250)  # none of the two that are ink on a full colour
        grey += grey == int(ON_LIGHT[1:3], 16)
        colour = bytes([grey] * 3)
    elif any(_is_near(colour, bytes.fromhex(kept[1:])) for kept in KEPT):
        return colour
    return bytes.fromhex(dark(f"#{colour.hex()}")[1:])


def _is_near(one: bytes, other: bytes) -> bool:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= NEAR
