"""GGUFReader: what is in a GGUF file, mapped into memory; nothing is copied before it is asked for.

Header, key-values and tensor infos come one after the other, then the tensors' data. All counts,
lengths and offsets are the file's word: each is held against the file's size before it is used.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from minivllm.quantization.gguf.types import TYPES, BlockType
from minivllm.utils.validation import shown

_STRING = 8
_ARRAY = 9
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
            10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
_VERSIONS = (2, 3)  # version 1 had counts of 32 bits
_MOST_DIMENSIONS = 4
_KINDS = {int: "an integer", float: "a float", bool: "a bool", str: "a string",
          list: "an array of strings", np.ndarray: "an array of numbers"}  # fmt: skip
REQUIRED: Any = object()


class TensorInfo(NamedTuple):
    """A tensor's place in the file."""

    shape: tuple[int, ...]  # rows first, as torch has it
    type: BlockType
    begin: int  # of its bytes in the file
    end: int


class GGUFReader:
    """Metadata and tensors of a GGUF file.

    Args:
        path: of the file.

    Raises:
        ValueError: if the file is broken, truncated, or has what we do not know; with the file,
            the field, its value and what is allowed.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._position = 0
        self._size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            if file.read(4) != b"GGUF":
                self.refuse("the first four bytes", "others", "'GGUF'")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._position = 4
        version = self._number("version", 4)
        if version not in _VERSIONS:
            self.refuse("version", version, " or ".join(map(str, _VERSIONS)))
        num_tensors = self._count("the number of tensors", 32)
        num_values = self._count("the number of key-values", 13)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string("a key")
            if key in self.metadata:
                self.refuse("a key", key, "there only once")
            self.metadata[key] = self._value(key, self._number(f"the type of {key!r}", 4))
        if self.get("split.count", int, 1) != 1:
            self.refuse("split.count", self.metadata["split.count"], "1: a model is one file")
        self.tensors = self._tensor_infos(num_tensors)

    def refuse(self, field: str, value: Any, allowed: str) -> NoReturn:
        """Raise ``ValueError`` for a field of this file."""
        raise ValueError(f"{self.path}: {field} must be {allowed}, got {shown(value)}.")

    def get(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        """A value of the metadata.

        Args:
            key: its name.
            kind: its type; an array of strings is a list, one of numbers an ndarray.
            default: what an absent one is.

        Raises:
            ValueError: if it is absent and has no default, or is of another type.
        """
        value = self.metadata.get(key, default)
        if value is REQUIRED:
            self.refuse(key, None, "in the file's metadata")
        if value is not default and type(value) is not kind:
            self.refuse(key, value, _KINDS[kind])
        return value

    def read(self, name: str) -> torch.Tensor:
        """Blocks of a tensor, uint8: its shape, but for the bytes of a row."""
        info = self.tensors[name]
        data = np.frombuffer(self._data, np.uint8, count=info.end - info.begin, offset=info.begin)
        return torch.from_numpy(data.copy()).view(*info.shape[:-1], -1)

    def dequantize(self, name: str) -> torch.Tensor:
        """Numbers of a tensor, float32 in its shape."""
        info = self.tensors[name]
        return info.type.dequantize(self.read(name)).view(info.shape)

    def _take(self, what: str, size: int) -> int:
        """Step over this many bytes, and return where they begin."""
        begin = self._position
        left = self._size - self._position
        if size > left:
            self.refuse(f"the size of {what}", size, f"at most the file's last {left} bytes")
        self._position += size
        return begin

    def _number(self, what: str, kind: int) -> Any:
        dtype = np.dtype(_NUMBERS[kind])
        begin = self._take(what, dtype.itemsize)
        return np.frombuffer(self._data, dtype, count=1, offset=begin)[0].item()

    def _count(self, what: str, each: int) -> int:
        """A number of items that have at least this many bytes each."""
        begin = self._take(what, 8)
        (count,) = struct.unpack_from("<Q", self._data, begin)
        left = self._size - self._position
        if count * each > left:
            self.refuse(what, count, f"at most {left // each}: only {left} bytes follow")
        return count

    def _string(self, what: str) -> str:
        size = self._count(f"the length of {what}", 1)
        begin = self._take(what, size)
        data = self._data[begin : begin + size]
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.refuse(what, data[:100], "text in UTF-8")

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string(f"{key!r}")
        if kind != _ARRAY:
            if kind not in _NUMBERS:
                self.refuse(f"the type of {key!r}", kind, f"one of {[*_NUMBERS, _STRING, _ARRAY]}")
            return self._number(f"{key!r}", kind)
        kind = self._number(f"the type of the items of {key!r}", 4)
        if kind == _STRING:
            count = self._count(f"the length of {key!r}", 8)
            return [self._string(f"an item of {key!r}") for _ in range(count)]
        if kind not in _NUMBERS:
            self.refuse(f"the type of the items of {key!r}", kind, f"one of {[*_NUMBERS, _STRING]}")
        dtype = np.dtype(_NUMBERS[kind])
        count = self._count(f"the length of {key!r}", dtype.itemsize)
        begin = self._take(f"{key!r}", count * dtype.itemsize)
        return np.frombuffer(self._data, dtype, count=count, offset=begin)

    def _tensor_infos(self, count: int) -> dict[str, TensorInfo]:
        raw = {}
        for _ in range(count):
            name = self._string("a tensor's name")
            if name in raw:
                self.refuse("a tensor's name", name, "there only once")
            raw[name] = self._shape_and_type(name)
        alignment = self.get("general.alignment", int, 32)
        if alignment < 8 or alignment % 8:
            self.refuse("general.alignment", alignment, "a multiple of 8")
        data = -(-self._position // alignment) * alignment
        tensors = {}
        for name, (shape, kind, offset) in raw.items():
            if offset % alignment:
                self.refuse(f"the offset of {name!r}", offset, f"a multiple of {alignment}")
            begin = data + offset
            end = begin + math.prod(shape) // kind.block_size * kind.block_bytes
            if end > self._size:
                allowed = f"inside the file of {self._size} bytes"
                self.refuse(f"the place of {name!r}", (begin, end), allowed)
            tensors[name] = TensorInfo(shape, kind, begin=begin, end=end)
        return tensors

    def _shape_and_type(self, name: str) -> tuple[tuple[int, ...], BlockType, int]:
        """A tensor's shape, type, and offset among the data."""
        num_dimensions = self._number(f"the number of dimensions of {name!r}", 4)
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            allowed = f"from 1 to {_MOST_DIMENSIONS}"
            self.refuse(f"the number of dimensions of {name!r}", num_dimensions, allowed)
        shape = tuple(self._number(f"the shape of {name!r}", 10) for _ in range(num_dimensions))
        if 0 in shape:
            self.refuse(f"the shape of {name!r}", shape, "without a zero")
        number = self._number(f"the type of {name!r}", 4)
        if number not in TYPES:
            known = ", ".join(f"{number} ({kind.name})" for number, kind in TYPES.items())
            self.refuse(f"the type of {name!r}", number, f"one of {known}")
        kind = TYPES[number]
        if shape[0] % kind.block_size:
            allowed = f"a multiple of {kind.block_size}, as a block of {kind.name} is"
            self.refuse(f"the row length of {name!r}", shape[0], allowed)
        return shape[::-1], kind, self._number(f"the offset of {name!r}", 10)
