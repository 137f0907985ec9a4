"""Hash of an item: its content decides which items are the same.

Every value is written with a tag of its kind and, where its length may vary, with its length before
it. So no two values have the same bytes, however they are nested.
(vLLM: ``MultiModalHasher`` in vllm/multimodal/hasher.py)
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

from minivllm.utils.validation import shown


def hash_item(model: str, modality: str, item: Any, options: dict[str, Any]) -> str:
    """Hash what an item's embeddings depend on. Returns 64 hexadecimal digits.

    Args:
        model: its name; another model makes other embeddings.
        modality: of the item.
        item: a picture of PIL, an array, or a nest of lists, dicts and plain values.
        options: of the processor.

    Raises:
        ValueError: for a value of a kind that has no bytes of its own.
    """
    digest = hashlib.sha256()
    for part in serialize([model, modality, item, options]):
        digest.update(part)
    return digest.hexdigest()


def serialize(value: Any) -> Iterator[bytes | memoryview]:
    """Write a value as bytes that no other value has, piece by piece.

    Raises:
        ValueError: as ``hash_item``.
    """
    if value is None:
        yield b"N"
    elif isinstance(value, bool):
        yield b"B1" if value else b"B0"
    elif isinstance(value, int):
        yield from _sized(b"I", str(value).encode())
    elif isinstance(value, float):
        yield b"F" + struct.pack("<d", value)
    elif isinstance(value, str):
        yield from _sized(b"S", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield from _sized(b"Y", value)
    elif isinstance(value, (list, tuple)):
        yield _head(b"L", len(value))
        for one in value:
            yield from serialize(one)
    elif isinstance(value, dict):
        yield _head(b"D", len(value))
        by_key = {b"".join(serialize(key)): one for key, one in value.items()}
        for key in sorted(by_key):
            yield key
            yield from serialize(by_key[key])
    elif hasattr(value, "tobytes") and hasattr(value, "getpalette"):
        yield b"P"
        yield from serialize(_picture(value))
    elif hasattr(value, "__array__"):
        yield b"A"
        yield from serialize(_array(value))
    else:
        raise ValueError(f"an item must be a picture, an array or plain values, got {shown(value)}")


def _picture(image: Any) -> list[Any]:
    """Mode and pixels of a picture of PIL; with a palette its colours, too. EXIF is none of it."""
    palette = image.palette
    colors = None if palette is None else [palette.mode, palette.tobytes()]
    return [image.mode, list(image.size), image.tobytes(), colors, image.info.get("transparency")]


def _array(value: Any) -> list[Any]:
    """Type, shape and numbers of an array."""
    import numpy as np

    array = np.ascontiguousarray(value)
    if array.dtype.hasobject:
        raise ValueError(f"an item must be an array of numbers, got {array.dtype}")
    # ascontiguousarray gives a scalar one dimension
    return [array.dtype.str, list(np.shape(value)), array.reshape(-1).view(np.uint8).data]


def _sized(tag: bytes, data: bytes | bytearray | memoryview) -> Iterator[bytes | memoryview]:
    yield _head(tag, memoryview(data).nbytes)
    yield memoryview(data)


def _head(tag: bytes, length: int) -> bytes:
    return tag + struct.pack("<Q", length)
